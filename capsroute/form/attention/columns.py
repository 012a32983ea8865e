"""All steps of inverted attention of few samples and many parents: votes are made once, and stored.

Of few rows (sample, pose row) votes are a fraction of the transforms, so that one pass over W makes them, one makes
its gradient, and all between reads votes V [b,i,j,f], f = (a, o). A program has some parents of a sample and walks over
all children: it holds whole sums, which it normalises, and finds the logits of the next step. What parents have to know
of each other is a plane [i,j,b] of logits, which a launch of its own turns into coefficients (`loop.planes`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.contractions.gradients import both_gradients
from capsroute.form.launch import LaunchSequence, in_turn, kernel, kind_of
from capsroute.form.launches.stored_votes import ColumnPlan
from capsroute.form.loop.planes import normalise_plane, normalise_plane_backward
from capsroute.form.loop.resident import make_votes
from capsroute.form.rows.totals import total
from capsroute.form.sizes import Sizes, operand_dtype
from capsroute.form.updates import updated, updated_gradient


@triton.jit
def _votes(V, b, i0, j, I, J, F, IC, FP):
    """Of IC children from i0 on, for parents j [JT]: [IC, JT, FP]."""
    i, j, f = i0 + tl.arange(0, IC)[:, None, None], j[None, :, None], tl.arange(0, FP)[None, None, :]
    return tl.load(V + ((b * I + i) * J + j) * F + f, mask=(i < I) & (j < J) & (f < F), other=0.0).to(tl.float32)


@triton.jit
def _pairs(b, i0, j, B, I, J, IC):
    """Where numbers [i,j,b] of IC children and parents j [JT] lie, and which there are: [IC, JT]."""
    i = i0 + tl.arange(0, IC)[:, None]
    return (i * J + j[None, :]) * B + b, (i < I) & (j < J)[None, :]


@triton.jit
def _weighted(V, weights, b, j, B, I, J, ALIKE, F, IC, JT, FP):
    """The sum of votes over all children, by weights [i,j,b], or of votes that count ALIKE: [JT, FP]."""
    some = tl.zeros((IC, JT, FP), tl.float32)
    for i0 in range(0, I, IC):
        U = _votes(V, b, i0, j, I, J, F, IC, FP)
        if ALIKE:
            some += U
        else:
            at, mask = _pairs(b, i0, j, B, I, J, IC)
            some += tl.load(weights + at, mask=mask, other=0.0)[:, :, None] * U
    return tl.sum(some, axis=0)


@triton.jit
def _agreed(V, q, out, b, j, B, I, J, F, IC, FP):
    """The dot products of votes with q [JT, FP], to out [i,j,b]."""
    for i0 in range(0, I, IC):
        at, mask = _pairs(b, i0, j, B, I, J, IC)
        tl.store(out + at, tl.sum(_votes(V, b, i0, j, I, J, F, IC, FP) * q[None, :, :], axis=2), mask=mask)


@triton.jit
def _poses(b, j, J, F, FP):
    """Where poses [b,j,f] of parents j [JT] lie, and which there are: [JT, FP]."""
    f = tl.arange(0, FP)[None, :]
    return (b * J + j[:, None]) * F + f, (j[:, None] < J) & (f < F)


@kernel("B", "I", "J", "t", "n", "plane", "scale")
def column_step(V, c, logits, sums, poses, B, I, J, t, n, plane, scale, FIRST: tl.constexpr, LAST: tl.constexpr,
                F: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Step t of a sample and JT parents, by coefficients c[plane] [i,j,b].

    It leaves sums[t], poses[n], and unless it is the LAST, whose poses are the result, those times the scale, which are
    the query, and the logits [i,j,b] of the next step.
    """
    in_turn()
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)
    at, mask = _poses(b, j, J, F, FP)
    s = _weighted(V, c + plane * (B * I * J), b, j, B, I, J, FIRST, F, IC, JT, FP)
    if FIRST:
        s = s / J
    tl.store(sums + t * (B * J * F) + at, s, mask=mask)
    v = updated(s, mask, F, True, LAST)
    if not LAST:
        v = v * scale
    tl.store(poses + n * (B * J * F) + at, v, mask=mask)
    if not LAST:
        _agreed(V, v, logits, b, j, B, I, J, F, IC, FP)


@kernel("B", "I", "J", "t", "n", "scale")
def column_step_back(V, gl, by_c, g, sums, x, B, I, J, t, n, scale, FIRST: tl.constexpr, LAST: tl.constexpr,
                     F: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Back through step t of a sample and JT parents: x[n], the gradient of its sums, and of its coefficients, by_c.

    That of its poses is g of the LAST, and comes of the others from gl[t] [i,j,b], that of the next step's logits. Of
    the FIRST, whose coefficients are all alike, x[n] is divided among the parents.
    """
    in_turn()
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)
    at, mask = _poses(b, j, J, F, FP)
    if LAST:
        by = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    else:
        by = _weighted(V, gl + t * (B * I * J), b, j, B, I, J, False, F, IC, JT, FP) * scale
    by = updated_gradient(tl.load(sums + t * (B * J * F) + at, mask=mask, other=0.0), by, mask, F, True, LAST)
    tl.store(x + n * (B * J * F) + at, by / J if FIRST else by, mask=mask)
    if not FIRST:
        _agreed(V, by, by_c, b, j, B, I, J, F, IC, FP)


def columns_forward(plan: ColumnPlan, u: Tensor, W: Tensor, s: Sizes, T: int, scale: float) -> tuple[Tensor, ...]:
    """Poses, last coefficients; then sums of all steps, poses of all but the last, votes, earlier coefficients."""
    V = u.new_empty((s.b, s.i, s.j, s.a, s.o), dtype=operand_dtype(u, W))
    sums = u.new_empty((T, s.b, s.j, s.a, s.o), dtype=torch.float32)
    poses, steps = torch.empty_like(sums[0]), sums.new_empty((T - 1, *sums.shape[1:]))
    last, earlier = sums.new_empty((s.i, s.j, s.b)), sums.new_empty((T - 2, s.i, s.j, s.b))
    run, sizes = LaunchSequence(plan.sequences, kind_of(u, W), u.dtype, W.dtype, T), (s.b, s.i, s.j)
    run(make_votes, plan.votes, u, W, V, *sizes)
    c, plane = last, 0
    for t in range(T):
        to, n = (poses, 0) if t == T - 1 else (steps, t)
        which = {"FIRST": t == 0, "LAST": t == T - 1}
        run(column_step, plan.step, V, c, last, sums, to, *sizes, t, n, plane, scale, **which)
        if t < T - 1:  # logits lie where the last coefficients will be
            c, plane = (last, 0) if t == T - 2 else (earlier, t)
            run(normalise_plane, plan.normalise, last, c, *sizes, plane, 0.0, 1.0, SOFTMAX=True)
    run.end()
    return poses, last.permute(2, 0, 1), sums, steps, V, earlier


def columns_backward(
    plan: ColumnPlan, g: Tensor, u: Tensor, W: Tensor, s: Sizes, kept: tuple[Tensor, ...], T: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Gradients by children and transforms."""
    c, sums, steps, V, earlier = kept
    if c.stride() != (1, s.j * s.b, s.b):
        c = c.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # as it was born, [i, j, b] in memory
    gl, x = c.new_empty((T - 1, s.i, s.j, s.b)), torch.empty_like(sums)
    by_c = gl if T == 2 else torch.empty_like(gl[0])
    run, sizes = LaunchSequence(plan.sequences, kind_of(u, W, g, c), u.dtype, W.dtype, g.dtype, T), (s.b, s.i, s.j)
    for t in range(T - 1, -1, -1):
        which = {"FIRST": t == 0, "LAST": t == T - 1}
        run(column_step_back, plan.step, V, gl, by_c, g, sums, x, *sizes, t, t - 1 if t else T - 1, scale, **which)
        if t > 0:
            now, plane = (c, 0) if t == T - 1 else (earlier, t - 1)
            numbers = (*sizes, t - 1, plane, 0.0, 1.0, 0)
            run(normalise_plane_backward, plan.normalise, by_c, now, by_c, gl, gl, *numbers, SOFTMAX=True, STORE=False)
    du, dW = x.new_empty((plan.gradients.splits, *u.shape)), torch.empty_like(W)
    terms, flags = (c, earlier, gl, x, steps), {"T": T, "FIRST": True, "LOGITS": True}
    run(both_gradients, plan.gradients, *terms, u, W, du, dW, *sizes, *c.stride(), **flags)
    run.end()
    return total(du, u.dtype), dW
