"""LayerNorm, squash and lengths of short rows, forward and backward: a program takes many rows.

torch gives each row of LayerNorm a block of its own, and squash is two dozen operators there. What a row needs besides
itself is made again for the backward pass; sums over rows are made in a fixed order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.contractions.kernels import WIDE
from capsroute.form.launch import Kernel, in_turn, kernel, kind_of, on_device
from capsroute.form.launches.maps_and_rows import row_launches
from capsroute.form.updates import direction, squashed, squashed_gradient

LONGEST = 256


@triton.jit
def _normalised(x, at, mask, n, eps, N):
    """Rows less their mean over their deviation [rows, NP], and one over the deviation [rows, 1]."""
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    v = tl.where((n < N)[None, :], v - (tl.sum(v, axis=1) / N)[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(v * v, axis=1) / N + eps)[:, None]
    return v * inverse, inverse


@kernel("R")
def normalise_rows(x, weight, bias, out, R, eps, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr,
                   AFFINE: tl.constexpr):  # fmt: skip
    """A program takes BLOCK rows: out[r,n] = LayerNorm of x[r], times weight[n] plus bias[n] if AFFINE."""
    in_turn()
    r, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, NP)
    at, mask = r[:, None] * N + n[None, :], (r < R)[:, None] & (n < N)[None, :]
    y, _ = _normalised(x, at, mask, n, eps, N)
    if AFFINE:
        w = tl.load(weight + n, mask=n < N, other=0.0).to(tl.float32)
        y = y * w[None, :] + tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, y, mask=mask)


@kernel("R", "TILES")
def normalise_rows_backward(x, weight, g, dx, part, R, TILES, eps, N: tl.constexpr, NP: tl.constexpr,
                            BLOCK: tl.constexpr, AFFINE: tl.constexpr):  # fmt: skip
    """A program walks over TILES blocks of rows.

    dx, and part[program, 0 or 1, n]: this program's share of the gradients of weight and bias.
    """
    in_turn()
    program, n = tl.program_id(0), tl.arange(0, NP)
    to_weight = tl.zeros((BLOCK, NP), tl.float32)
    to_bias = tl.zeros((BLOCK, NP), tl.float32)
    for tile in range(program * TILES, (program + 1) * TILES):
        r = tile * BLOCK + tl.arange(0, BLOCK)
        at, mask = r[:, None] * N + n[None, :], (r < R)[:, None] & (n < N)[None, :]
        y, inverse = _normalised(x, at, mask, n, eps, N)
        gy = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
        if AFFINE:
            to_weight += gy * y
            to_bias += gy
            gy = gy * tl.load(weight + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
        along = (tl.sum(gy * y, axis=1) / N)[:, None]
        gx = (gy - (tl.sum(gy, axis=1) / N)[:, None] - y * along) * inverse
        tl.store(dx + at, gx, mask=mask)
    if AFFINE:
        tl.store(part + program * (2 * N) + n, tl.sum(to_weight, axis=0), mask=n < N)
        tl.store(part + program * (2 * N) + N + n, tl.sum(to_bias, axis=0), mask=n < N)


@triton.jit
def _places(R, INNER, N, NP, BLOCK):
    """Where the numbers of rows of x [outer, n, inner] are, which rows and which of them there are."""
    r, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, NP)
    at = (r // INNER * (N * INNER) + r % INNER)[:, None] + n[None, :] * INNER
    return at, r, (r < R)[:, None] & (n < N)[None, :]


@kernel("R")
def squash_rows(x, out, R, INNER, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr):
    """A program takes BLOCK rows: out = squash of x over its middle axis."""
    in_turn()
    at, _, mask = _places(R, INNER, N, NP, BLOCK)
    tl.store(out + at, squashed(tl.load(x + at, mask=mask, other=0.0).to(tl.float32)), mask=mask)


@kernel("R")
def squash_rows_backward(x, g, dx, R, INNER, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr):
    """A program takes BLOCK rows: dx, from g, both like x."""
    in_turn()
    at, _, mask = _places(R, INNER, N, NP, BLOCK)
    v, gy = (tl.load(x + at, mask=mask, other=0.0), tl.load(g + at, mask=mask, other=0.0))
    tl.store(dx + at, squashed_gradient(v.to(tl.float32), gy.to(tl.float32)), mask=mask)


@kernel("R")
def row_lengths(x, out, R, INNER, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr):
    """A program takes BLOCK rows: out[outer, inner] = length of x over its middle axis."""
    in_turn()
    at, r, mask = _places(R, INNER, N, NP, BLOCK)
    _, length = direction(tl.load(x + at, mask=mask, other=0.0).to(tl.float32))
    tl.store(out + r[:, None], length, mask=(r < R)[:, None])


@kernel("R")
def row_lengths_backward(x, g, dx, R, INNER, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr):
    """A program takes BLOCK rows: dx like x, from g[outer, inner]: the direction, times that."""
    in_turn()
    at, r, mask = _places(R, INNER, N, NP, BLOCK)
    unit, _ = direction(tl.load(x + at, mask=mask, other=0.0).to(tl.float32))
    tl.store(dx + at, unit * tl.load(g + r, mask=r < R, other=0.0).to(tl.float32)[:, None], mask=mask)


def squash_reasons(x: Tensor, length: int) -> list[str]:
    """Why the kernels do not apply to rows of x, so long, if anything."""
    reasons = []
    if x.dtype == torch.float64:
        reasons.append(WIDE)
    if x.numel() == 0 or x.numel() >= 1 << 31:
        reasons.append(f"the kernels take 1 to 2^31 - 1 numbers, here {x.numel()}")
    if length > LONGEST:
        reasons.append(f"rows are at most {LONGEST} long, here {length}")
    return reasons


def row_reasons(x: Tensor, axes: int = 1) -> list[str]:
    """The same for rows that are the last axes of x, so many."""
    return squash_reasons(x, x.shape[-axes:].numel())


def pose_reasons(x: Tensor) -> list[str]:
    """The same for poses x [..., a, o]."""
    return row_reasons(x, 2)


@on_device
def layer_norm_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, eps: float, dtype: torch.dtype
) -> Tensor:
    """LayerNorm over the last axes of x."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=dtype)
    w, b = x if weight is None else weight.contiguous(), x if bias is None else bias.contiguous()
    n = x.shape[-axes:].numel()
    rows = x.numel() // n
    launch, _ = row_launches(rows, n)
    normalise_rows(launch, kind_of(x, w, b), x, w, b, out, rows, eps, AFFINE=weight is not None)
    return out


@on_device
def layer_norm_backward(
    grads: tuple[Tensor], tensors: tuple[Tensor, Tensor | None, Tensor | None], kept: tuple, axes: int, eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients by x, weight and bias."""
    g, x, weight = grads[0].contiguous(), tensors[0].contiguous(), tensors[1]
    row = x.shape[-axes:]
    rows, n = x.numel() // row.numel(), row.numel()
    _, launch = row_launches(rows, n)
    dx, part = torch.empty_like(x), x.new_empty((launch.splits, 2, *row), dtype=torch.float32)
    w = x if weight is None else weight.contiguous()
    numbers = (rows, launch.tiles, eps)
    normalise_rows_backward(launch, kind_of(x, w, g), x, w, g, dx, part, *numbers, AFFINE=weight is not None)
    if weight is None:
        return dx, None, None
    to_weight, to_bias = part.sum(0).to(weight.dtype).unbind()
    return dx, to_weight, to_bias


def _over_middle(kernel: Kernel, n: int, inner: int, x: Tensor, *more: Tensor) -> Tensor:
    """x, in memory [outer, n, inner], what else the kernel reads, and last what it fills, which is returned."""
    rows = x.numel() // n
    kernel(row_launches(rows, n)[0], kind_of(x, *more, inner), x, *more, rows, inner)
    return more[-1]


@on_device
def squash_forward(x: Tensor, n: int, inner: int, axes: tuple[int, ...] | None, dims: int | tuple[int, ...]) -> Tensor:
    """Squash over `dims` of x: in memory, where its `axes` lie in that order (None: their own), [outer, n, inner]."""
    return _over_middle(squash_rows, n, inner, x, torch.empty_like(x))


@on_device
def squash_backward(
    grads: tuple[Tensor], tensors: tuple[Tensor], kept: tuple, n: int, inner: int, axes: tuple[int, ...] | None,
    dims: int | tuple[int, ...],
) -> tuple[Tensor]:  # fmt: skip
    """The gradient by x, which somebody may have kept in another order."""
    x, g = (t.contiguous() if axes is None else t.permute(axes).contiguous() for t in (tensors[0], grads[0]))
    dx = _over_middle(squash_rows_backward, n, inner, x, g, torch.empty_like(x))
    return (dx if axes is None else dx.permute([axes.index(place) for place in range(len(axes))]),)


@on_device
def lengths_forward(x: Tensor) -> Tensor:
    """Lengths of poses x [..., a, o]."""
    x = x.contiguous()
    return _over_middle(row_lengths, x.shape[-2:].numel(), 1, x, x.new_empty(x.shape[:-2]))


@on_device
def lengths_backward(grads: tuple[Tensor], tensors: tuple[Tensor], kept: tuple) -> tuple[Tensor]:
    """The gradient by x."""
    x, g = tensors[0].contiguous(), grads[0].contiguous()
    return (_over_middle(row_lengths_backward, x.shape[-2:].numel(), 1, x, g, torch.empty_like(x)),)
