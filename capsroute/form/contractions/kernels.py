"""The four contractions as kernels, for per-child transforms of any size; `gradients` has two of them.

Agreement and weighted sum leave or read coefficients as a plane [i,j,b]. A program holds BT samples and JT parents and
walks over NCH tiles of IC children. Sums are made in a fixed order: no atomics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import triton.language as tl
from torch import Tensor

from capsroute.form.contractions.gradients import children_gradient, transforms_gradient
from capsroute.form.contractions.plain import same_for_all
from capsroute.form.cost import few_rows
from capsroute.form.dispatch import ALIKE, SHARED
from capsroute.form.launch import Launch, in_turn, kernel, kind_of, on_device
from capsroute.form.launches.lists import contraction_plan
from capsroute.form.maps import children_at
from capsroute.form.sizes import GRID_ROWS, MOST_POSE, Sizes, operand_dtype, precision, sizes_of
from capsroute.form.tiles import (
    agreed,
    child_of_tile,
    columns,
    load,
    ordered,
    per_row,
    rows_at,
    there,
    transforms_at,
    weighted,
    zeros,
)  # fmt: skip


@kernel("NCH", "t")
def agreement_plane(u, W, q, given, out, B, I, J, NCH, t, g_b, g_i, g_j, A: tl.constexpr, K: tl.constexpr,
                    O: tl.constexpr, AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, BT: tl.constexpr,
                    IC: tl.constexpr, JT: tl.constexpr, DT: tl.constexpr, GIVEN: tl.constexpr, ALONE: tl.constexpr,
                    EVEN: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr, MAP: tl.constexpr):  # fmt: skip
    """A program holds BT samples and JT parents, and walks over NCH tiles of IC children.

    out[i,j,b] = the votes' dot product with q[t,b,j,a,o], plus given[b,i,j] (GIVEN), or only that (ALONE).
    """
    in_turn()
    tile, split, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, a, rows = rows_at(tile, B, A, AP, BT)
    sample = tile * BT + tl.arange(0, BT)
    child, k = columns(IC, KP, False)
    member = child_of_tile(IC)
    o = tl.arange(0, OP)
    pose = t * (B * J * A * O) + b[:, None] * (J * A * O) + a[:, None] * O + o[None, :]
    poses = rows & (o < O)[None, :]
    Q = ()
    for n in tl.static_range(JT):
        j = group * JT + n
        Q = Q + (tl.load(q + pose + j * (A * O), mask=poses & there(j, J), other=0.0),)
    for chunk in tl.range(0, NCH, num_stages=NS):
        i0 = (split * NCH + chunk) * IC
        i = i0 + child
        U = children_at(u, b, a, i, k, I, rows, (i < I) & (k < K), A, K, MAP).to(tl.float32)
        w, valid = transforms_at(W, i, k, I, J, K, O, OP)
        entry = (sample < B)[:, None, None] & (i0 + member < I)
        for n in tl.static_range(JT):
            j = group * JT + n
            if ALONE:
                logits = tl.zeros((BT, IC // 4, 4), tl.float32)
            else:
                Wt = load(w + j * (K * O), valid & there(j, J), EVEN).to(DT)
                logits = agreed(Q[n], Wt, U, BT, AP, IC, KP, PRECISION)
            if GIVEN:
                at = given + sample[:, None, None] * g_b + (i0 + member) * g_i + j * g_j
                logits += tl.load(at, mask=entry & there(j, J)[:, :, None], other=0.0)
            tl.store(
                out + ((i0 + member) * J + j) * B + sample[:, None, None], logits, mask=entry & there(j, J)[:, :, None]
            )


@kernel("NCH", "plane")
def aggregate_plane(u, W, c, part, B, I, J, NCH, plane, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                    AP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, BT: tl.constexpr, IC: tl.constexpr,
                    JT: tl.constexpr, DT: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr, NS: tl.constexpr,
                    MAP: tl.constexpr):  # fmt: skip
    """As `agreement_plane`.

    part[split,b,j,a,o] = this program's share of the votes' sum with weights c[plane,i,j,b].
    """
    in_turn()
    tile, split, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b, a, rows = rows_at(tile, B, A, AP, BT)
    sample = tile * BT + tl.arange(0, BT)
    child, k = columns(IC, KP, False)
    child2, k2 = columns(IC, KP, DT == tl.float32)
    member = child_of_tile(IC)
    c += plane * (I * J * B)
    acc = zeros(JT, BT * AP, OP)
    for chunk in tl.range(0, NCH, num_stages=NS):
        i0 = (split * NCH + chunk) * IC
        i = i0 + child
        U = children_at(u, b, a, i, k, I, rows, (i < I) & (k < K), A, K, MAP).to(tl.float32)
        V = ordered(U, BT * AP, IC, KP, DT)
        w, valid = transforms_at(W, i0 + child2, k2, I, J, K, O, OP)
        entry = (sample < B)[:, None, None] & (i0 + member < I)
        new = ()
        for n in tl.static_range(JT):
            j = group * JT + n
            at = c + ((i0 + member) * J + j) * B + sample[:, None, None]
            C = tl.load(at, mask=entry & there(j, J)[:, :, None], other=0.0).to(tl.float32)
            Wt = load(w + j * (K * O), valid & there(j, J), EVEN).to(DT)
            left = weighted(per_row(C, BT, AP, IC), V, BT * AP, IC, KP, DT)
            new = new + (tl.dot(left, Wt, acc[n], input_precision=PRECISION),)
        acc = new
    o = tl.arange(0, OP)
    to = part + (split * B + b[:, None]) * (J * A * O) + a[:, None] * O + o[None, :]
    for n in tl.static_range(JT):
        j = group * JT + n
        tl.store(to + j * (A * O), acc[n], mask=rows & (o < O)[None, :] & there(j, J))


# The gradient kernels with one term: coefficients and parents.
SINGLE = {"T": 2, "FIRST": False, "LOGITS": False}


@on_device
def agreement(u: Tensor, W: Tensor, q: Tensor) -> Tensor:
    """dPhi/dc [b,i,j]."""
    s, dtype = sizes_of(u, W), operand_dtype(u, W)
    out = u.new_empty((s.i, s.j, s.b), dtype=torch.float32)
    launch = contraction_plan(s, dtype, precision()).agreement
    u, W, q = u.contiguous(), W.contiguous(), q.to(dtype).contiguous()
    numbers = (s.b, s.i, s.j, launch.tiles, 0, 0, 0, 0)
    agreement_plane(launch, kind_of(u, W, q), u, W, q, out, out, *numbers, GIVEN=False, ALONE=False)
    return out.permute(2, 0, 1).contiguous()


@on_device
def aggregate(c: Tensor, u: Tensor, W: Tensor) -> Tensor:
    """dPhi/dq [b,j,a,o]."""
    s, dtype = sizes_of(u, W), operand_dtype(u, W)
    launch = contraction_plan(s, dtype, precision()).aggregate
    part = u.new_empty((launch.splits, s.b, s.j, s.a, s.o), dtype=torch.float32)
    u, W, c = u.contiguous(), W.contiguous(), c.permute(1, 2, 0).contiguous()
    aggregate_plane(launch, kind_of(u, W, c), u, W, c, part, s.b, s.i, s.j, launch.tiles, 0)
    return part[0] if launch.splits == 1 else part.sum(0)


@on_device
def grad_children(c: Tensor, W: Tensor, q: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """dPhi/du [b,i,a,k], in the dtype that is wanted."""
    (b, i, j), (k, o), multiplied = c.shape, W.shape[2:], operand_dtype(W)
    s = Sizes(b, i, j, q.shape[2], k, o)
    W, q, strides = W.contiguous(), q.to(multiplied).contiguous(), c.stride()
    launch, kind = contraction_plan(s, multiplied, precision()).children, kind_of(c, W, q, *strides)
    out = _parts(c, launch, (s.b, s.i, s.a, s.k), dtype)
    children_gradient(launch, kind, c, c, c, q, q, W, out, s.b, s.i, s.j, launch.tiles, *strides, **SINGLE)
    return out[0] if launch.splits == 1 else out.sum(0).to(dtype)


@on_device
def grad_transforms(c: Tensor, u: Tensor, q: Tensor, shared: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    """dPhi/dW [i,j,k,o], in the dtype that is wanted."""
    (b, i, j), (a, k), multiplied = c.shape, u.shape[2:], operand_dtype(u)
    s = Sizes(b, i, j, a, k, q.shape[3])
    u, q, strides = u.contiguous(), q.to(multiplied).contiguous(), c.stride()
    launch, kind = contraction_plan(s, multiplied, precision()).transforms, kind_of(c, u, q, *strides)
    out = _parts(c, launch, (s.i, s.j, s.k, s.o), dtype)
    transforms_gradient(launch, kind, c, c, c, q, q, u, out, s.b, s.i, s.j, launch.tiles, *strides, **SINGLE)
    return out[0] if launch.splits == 1 else out.sum(0).to(dtype)


def _parts(like: Tensor, launch: Launch, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """What a launch fills: the result, or partial sums of it in float32."""
    return like.new_empty((launch.splits, *shape), dtype=dtype if launch.splits == 1 else torch.float32)


WIDE = "operands are float64, the kernels sum in float32"


def operand_reasons(u: Tensor, W: Tensor, *results: Sequence[int]) -> list[str]:
    """Why no kernel applies to these operands and to results of these sizes, if anything."""
    return _size_reasons(u.shape, W.shape, *results) + [WIDE] * (torch.float64 in (u.dtype, W.dtype))


def _size_reasons(*shapes: Sequence[int]) -> list[str]:
    """Why no kernel applies to operands and results of these sizes, if anything."""
    found = []
    if any(math.prod(shape) >= 1 << 31 for shape in shapes):
        found.append("a tensor has 2^31 elements or more, beyond the kernels' 32-bit offsets")
    if any(math.prod(shape) == 0 for shape in shapes):
        found.append("an operand is empty")
    if any(len(shape) == 4 and max(shape[2:]) > MOST_POSE for shape in shapes):
        found.append(f"a pose has more than {MOST_POSE} rows or columns")
    return found


def grid_reasons(parents: int, samples: int = 0) -> list[str]:
    """Why no kernel applies to so many; a program takes 32 of so many samples where it normalises a plane."""
    if max(parents, -(-samples // 32)) > GRID_ROWS:
        return ["more parents, or samples by 32, than 65,535: a grid has no more rows"]
    return []


def _sizes(found: dict[str, int]) -> Sizes:
    return Sizes(*[found.get(n, 1) for n in Sizes._fields])


def reasons(letters: str, result: str, shared: Callable[..., bool]) -> Callable[..., list[str]]:
    """The reasons why a contraction's kernel does not apply; `shared` tells whether its transforms are."""

    def found(*operands: Tensor | bool) -> list[str]:
        tensors = [t for t in operands if isinstance(t, Tensor)]
        sizes = {n: size for axes, t in zip(letters.split(), tensors) for n, size in zip(axes, t.shape) if size > 1}
        found = _size_reasons(*(t.shape for t in tensors), [sizes.get(n, 1) for n in result])
        found += grid_reasons(sizes.get("j", 1))
        if any(t.dtype == torch.float64 for t in tensors):
            found.append(WIDE)
        if shared(*operands):
            found.append(SHARED)
        elif any(t.dim() == 3 and same_for_all(t) for t in tensors) and not few_rows(_sizes(sizes)):
            found.append(ALIKE)
        return found

    return found


REASONS = {
    "agreement": reasons("biak ijko bjao", "bij", lambda u, W, q: W.shape[0] == 1),
    "aggregate": reasons("bij biak ijko", "bjao", lambda c, u, W: W.shape[0] == 1),
    "grad_children": reasons("bij ijko bjao", "biak", lambda c, W, q: W.shape[0] == 1),
    "grad_transforms": reasons("bij biak bjao", "ijko", lambda c, u, q, shared: shared),
}
