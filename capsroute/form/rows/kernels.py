"""LayerNorm and squash over short rows, forward and backward: a program takes many rows.

torch gives each row of LayerNorm a block of its own, and squash is two dozen operators there. What a row needs besides
itself is made again for the backward pass; sums over rows are made in a fixed order.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.contractions.kernels import WIDE
from capsroute.form.launch import Launch, kernel, kind_of, on_device
from capsroute.form.lengths import squashed, squashed_gradient
from capsroute.form.plan import cdiv, power_of_2

__all__ = ["layer_norm_backward", "layer_norm_forward", "row_reasons", "squash_backward", "squash_forward"]

LONGEST = 256
BACKWARD_PROGRAMS = 1024


@triton.jit
def _normalised(x, at, mask, n, eps, N: tl.constexpr):
    """Rows less their mean over their deviation [rows, NP], and one over the deviation [rows, 1]."""
    v = tl.load(x + at, mask=mask, other=0.0).to(tl.float32)
    v = tl.where((n < N)[None, :], v - (tl.sum(v, axis=1) / N)[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(v * v, axis=1) / N + eps)[:, None]
    return v * inverse, inverse


@kernel("R")
def normalise_rows(x, weight, bias, out, R, eps, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr,
                   AFFINE: tl.constexpr):  # fmt: skip
    """out[r,n] = LayerNorm of x[r], times weight[n] plus bias[n] if AFFINE."""
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
    """dx, and part[program, 0 or 1, n]: this program's share of the gradients of weight and bias."""
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


@kernel("R")
def squash_rows(x, out, R, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr):
    """out[r,n] = squash of x[r]."""
    r, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, NP)
    at, mask = r[:, None] * N + n[None, :], (r < R)[:, None] & (n < N)[None, :]
    tl.store(out + at, squashed(tl.load(x + at, mask=mask, other=0.0).to(tl.float32)), mask=mask)


@kernel("R")
def squash_rows_backward(x, g, dx, R, N: tl.constexpr, NP: tl.constexpr, BLOCK: tl.constexpr):
    """dx[r,n], from g[r,n]."""
    r, n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, NP)
    at, mask = r[:, None] * N + n[None, :], (r < R)[:, None] & (n < N)[None, :]
    v, gy = (tl.load(x + at, mask=mask, other=0.0), tl.load(g + at, mask=mask, other=0.0))
    tl.store(dx + at, squashed_gradient(v.to(tl.float32), gy.to(tl.float32)), mask=mask)


def row_reasons(x: Tensor) -> list[str]:
    """Why the kernels do not apply to rows x [..., n], if anything."""
    reasons = []
    if x.dtype == torch.float64:
        reasons.append(WIDE)
    if x.numel() == 0 or x.numel() >= 1 << 31:
        reasons.append(f"the kernels take 1 to 2^31 - 1 numbers, here {x.numel()}")
    if x.shape[-1] > LONGEST:
        reasons.append(f"rows are at most {LONGEST} long, here {x.shape[-1]}")
    return reasons


@functools.lru_cache(maxsize=256)
def _launches(rows: int, n: int) -> tuple[Launch, Launch]:
    width = power_of_2(n)
    block = max(1, 2048 // width)
    options = {"N": n, "NP": width, "BLOCK": block, "num_warps": 4}
    tiles = cdiv(rows, block)
    walk = cdiv(tiles, BACKWARD_PROGRAMS)
    return Launch((tiles, 1, 1), 1, 1, options), Launch((cdiv(tiles, walk), 1, 1), walk, cdiv(tiles, walk), options)


@on_device
def layer_norm_forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    """LayerNorm over the last axis of x."""
    x = x.contiguous()
    out = torch.empty_like(x, dtype=dtype)
    w, b = (x if t is None else t for t in (weight, bias))
    rows = x.numel() // x.shape[-1]
    launch, _ = _launches(rows, x.shape[-1])
    normalise_rows(launch, kind_of(x, w, b), x, w, b, out, rows, eps, AFFINE=weight is not None)
    return out


@on_device
def layer_norm_backward(
    grads: tuple[Tensor],
    tensors: tuple[Tensor, Tensor | None, Tensor | None],
    kept: tuple,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients by x, weight and bias."""
    g, x, weight = grads[0].contiguous(), tensors[0].contiguous(), tensors[1]
    rows, n = x.numel() // x.shape[-1], x.shape[-1]
    _, launch = _launches(rows, n)
    dx, part = torch.empty_like(x), x.new_empty((launch.splits, 2, n), dtype=torch.float32)
    w = x if weight is None else weight
    numbers = (rows, launch.tiles, eps)
    normalise_rows_backward(launch, kind_of(x, w, g), x, w, g, dx, part, *numbers, AFFINE=weight is not None)
    if weight is None:
        return dx, None, None
    to_weight, to_bias = part.sum(0).to(weight.dtype)
    return dx, to_weight, to_bias


@on_device
def squash_forward(x: Tensor) -> Tensor:
    """Squash over the last axis of x."""
    x = x.contiguous()
    out, rows = torch.empty_like(x), x.numel() // x.shape[-1]
    squash_rows(_launches(rows, x.shape[-1])[0], kind_of(x), x, out, rows)
    return out


@on_device
def squash_backward(grads: tuple[Tensor], tensors: tuple[Tensor], kept: tuple) -> tuple[Tensor]:
    """The gradient by x."""
    g, x = grads[0].contiguous(), tensors[0].contiguous()
    dx, rows = torch.empty_like(x), x.numel() // x.shape[-1]
    squash_rows_backward(_launches(rows, x.shape[-1])[0], kind_of(x, g), x, g, dx, rows)
    return (dx,)
