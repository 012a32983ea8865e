"""All steps of inverted attention of few samples and many parents: votes are made once, and stored.

Of few rows (sample, pose row) votes are a fraction of the transforms, so that one pass over W makes them, one makes
its gradient, and all between reads votes V [b,i,j,f], f = (a, o). A program has some parents of a sample and walks over
all children: it holds whole sums, which it normalises, and finds the logits of the next step. What parents have to know
of each other is a plane [b,i,j] of logits, which a launch of its own turns into coefficients (`loop.planes`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import LaunchSequence, kernel, kind_of
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
def _pairs(b, i0, j, I, J, IC):
    """Where numbers [b,i,j] of IC children and parents j [JT] lie, and which there are: [IC, JT]."""
    i = i0 + tl.arange(0, IC)[:, None]
    return (b * I + i) * J + j[None, :], (i < I) & (j < J)[None, :]


@triton.jit
def _weighted(V, weights, b, j, I, J, ALIKE, F, IC, JT, FP):
    """The sum of votes over all children, by weights [b,i,j], or of votes that count ALIKE: [JT, FP]."""
    some = tl.zeros((IC, JT, FP), tl.float32)
    for i0 in range(0, I, IC):
        U = _votes(V, b, i0, j, I, J, F, IC, FP)
        if ALIKE:
            some += U
        else:
            at, mask = _pairs(b, i0, j, I, J, IC)
            some += tl.load(weights + at, mask=mask, other=0.0)[:, :, None] * U
    return tl.sum(some, axis=0)


@triton.jit
def _agreed(V, q, out, b, j, I, J, F, IC, FP):
    """The dot products of votes with q [JT, FP], to out [b,i,j]."""
    for i0 in range(0, I, IC):
        at, mask = _pairs(b, i0, j, I, J, IC)
        tl.store(out + at, tl.sum(_votes(V, b, i0, j, I, J, F, IC, FP) * q[None, :, :], axis=2), mask=mask)


@triton.jit
def _poses(b, j, J, F, FP):
    """Where poses [b,j,f] of parents j [JT] lie, and which there are: [JT, FP]."""
    f = tl.arange(0, FP)[None, :]
    return (b * J + j[:, None]) * F + f, (j[:, None] < J) & (f < F)


@kernel("B", "I", "J", "t", "n", "plane", "scale")
def column_step(V, c, logits, sums, poses, B, I, J, t, n, plane, scale, FIRST: tl.constexpr, LAST: tl.constexpr,
                F: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Step t of a sample and JT parents, by coefficients c[plane] [b,i,j].

    It leaves sums[t], poses[n], and the logits [b,i,j] of the next step, unless it is the LAST.
    """
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)
    at, mask = _poses(b, j, J, F, FP)
    s = _weighted(V, c + plane * (B * I * J), b, j, I, J, FIRST, F, IC, JT, FP)
    if FIRST:
        s = s / J
    tl.store(sums + t * (B * J * F) + at, s, mask=mask)
    v = updated(s, mask, F, True)
    tl.store(poses + n * (B * J * F) + at, v, mask=mask)
    if not LAST:
        _agreed(V, v * scale, logits, b, j, I, J, F, IC, FP)


@kernel("B", "I", "J", "t", "scale")
def column_step_back(V, gl, by_c, g, sums, x, B, I, J, t, scale, FIRST: tl.constexpr, LAST: tl.constexpr,
                     F: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Back through step t of a sample and JT parents: x[t], the gradient of its sums, and of its coefficients, by_c.

    That of its poses is g of the LAST, and comes of the others from gl[t] [b,i,j], that of the next step's logits. Of
    the FIRST, whose coefficients are all alike, x[0] is divided among the parents.
    """
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)
    at, mask = _poses(b, j, J, F, FP)
    if LAST:
        by = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    else:
        by = _weighted(V, gl + t * (B * I * J), b, j, I, J, False, F, IC, JT, FP) * scale
    at += t * (B * J * F)
    by = updated_gradient(tl.load(sums + at, mask=mask, other=0.0), by, mask, F, True)
    tl.store(x + at, by / J if FIRST else by, mask=mask)
    if not FIRST:
        _agreed(V, by, by_c, b, j, I, J, F, IC, FP)


@kernel("B", "I", "J", "scale")
def column_gradients(c, earlier, gl, x, poses, u, W, du, dW, B, I, J, scale, T: tl.constexpr, A: tl.constexpr,
                     K: tl.constexpr, O: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                     JT: tl.constexpr):  # fmt: skip
    """Gradients by children and transforms of all T steps at once: a program has one child and JT parents.

    It reads their transforms once, and leaves dW[i,j,k,o] and a part of the sum over parents, du[split,b,i,a,k].
    """
    i, split = tl.program_id(0), tl.program_id(1)
    j, k = split * JT + tl.arange(0, JT)[:, None, None], tl.arange(0, KP)[None, :, None]
    o = tl.arange(0, OP)[None, None, :]
    pose, at = (j < J) & (o < O), ((i * J + j) * K + k) * O + o
    Wt = tl.load(W + at, mask=pose & (k < K), other=0.0).to(tl.float32)
    size, pairs = B * J * (A * O), B * I * J
    acc = tl.zeros((JT, KP, OP), tl.float32)
    for b in range(0, B):
        pair = (b * I + i) * J + j
        for a in tl.static_range(A):
            row = (b * J + j) * (A * O) + a * O + o
            y = tl.load(x + row, mask=pose, other=0.0)
            for t in tl.static_range(1, T):
                of = c + pair if t == T - 1 else earlier + (t - 1) * pairs + pair
                weight = tl.load(of, mask=j < J, other=0.0)
                slope = tl.load(gl + (t - 1) * pairs + pair, mask=j < J, other=0.0) * scale
                y += weight * tl.load(x + t * size + row, mask=pose, other=0.0)
                y += slope * tl.load(poses + (t - 1) * size + row, mask=pose, other=0.0)
            child = ((b * I + i) * A + a) * K + k
            acc += tl.load(u + child, mask=k < K, other=0.0).to(tl.float32) * y
            found = tl.sum(tl.sum(Wt * y, axis=2, keep_dims=True), axis=0, keep_dims=True)
            tl.store(du + split * (B * I * A * K) + child, found, mask=k < K)
    tl.store(dW + at, acc, mask=pose & (k < K))


def columns_forward(plan: ColumnPlan, u: Tensor, W: Tensor, s: Sizes, T: int, scale: float) -> tuple[Tensor, ...]:
    """Poses, last coefficients; then sums of all steps, poses of all but the last, votes, earlier coefficients."""
    V = u.new_empty((s.b, s.i, s.j, s.a, s.o), dtype=operand_dtype(u, W))
    sums = u.new_empty((T, s.b, s.j, s.a, s.o), dtype=torch.float32)
    poses, steps = torch.empty_like(sums[0]), sums.new_empty((T - 1, *sums.shape[1:]))
    last, earlier = sums.new_empty((s.b, s.i, s.j)), sums.new_empty((T - 2, s.b, s.i, s.j))
    run, sizes = LaunchSequence(plan.sequences, kind_of(u, W), u.dtype, W.dtype, T), (s.b, s.i, s.j)
    run(make_votes, plan.votes, u, W, V, *sizes)
    c, plane = last, 0
    for t in range(T):
        to, n = (poses, 0) if t == T - 1 else (steps, t)
        which = {"FIRST": t == 0, "LAST": t == T - 1}
        run(column_step, plan.step, V, c, last, sums, to, *sizes, t, n, plane, scale, **which)
        if t < T - 1:  # logits lie where the last coefficients will be
            c, plane = (last, 0) if t == T - 2 else (earlier, t)
            run(normalise_plane, plan.normalise, last, c, 1, s.b * s.i, s.j, plane, 0.0, 1.0, SOFTMAX=True)
    run.end()
    return poses, last, sums, steps, V, earlier


def columns_backward(
    plan: ColumnPlan, g: Tensor, u: Tensor, W: Tensor, s: Sizes, kept: tuple[Tensor, ...], T: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Gradients by children and transforms."""
    c, sums, steps, V, earlier = kept
    gl, x = c.new_empty((T - 1, *c.shape)), torch.empty_like(sums)
    by_c = gl if T == 2 else torch.empty_like(c)
    run, sizes = LaunchSequence(plan.sequences, kind_of(u, W, g, c), u.dtype, W.dtype, g.dtype, T), (s.b, s.i, s.j)
    for t in range(T - 1, -1, -1):
        which = {"FIRST": t == 0, "LAST": t == T - 1}
        run(column_step_back, plan.step, V, gl, by_c, g, sums, x, *sizes, t, scale, **which)
        if t > 0:
            now, plane = (c, 0) if t == T - 1 else (earlier, t - 1)
            numbers = (1, s.b * s.i, s.j, t - 1, plane, 0.0, 1.0)
            run(normalise_plane_backward, plan.normalise, by_c, now, by_c, gl, *numbers, SOFTMAX=True, STORE=False)
    du, dW = x.new_empty((plan.gradients.splits, *u.shape)), torch.empty_like(W)
    run(column_gradients, plan.gradients, c, earlier, gl, x, steps, u, W, du, dW, *sizes, scale, T=T)
    run.end()
    return total(du, u.dtype), dW
