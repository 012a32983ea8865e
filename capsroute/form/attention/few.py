"""A step of inverted attention over a list where products are few: no matrix unit, W read once, as it lies.

A program takes one sample, holds all parents and walks over NT tiles of IC children, whose transforms it holds whole:
W [IC,JP,KP,OP]. Votes are made of them row by row of the pose. The first step has no parents yet: coefficients are all
1 / j. All steps of a layer (`few_steps_forward`) get one gradient of transforms and children, made when those of all
sums are there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import Launch, LaunchSequence, in_turn, kernel, kind_of
from capsroute.form.launches.attention_steps import FewPlan
from capsroute.form.loop.reductions import sum_and_squash, sum_and_squash_backward
from capsroute.form.loop.walks import normalised, slopes
from capsroute.form.rows.totals import total
from capsroute.form.sizes import Sizes, sizes_of


@triton.jit
def _poses(x, b, factor, J, A, O, JP, OP):
    """A tuple of pose rows [1,JP,OP] of all parents of a sample."""
    j, o = tl.arange(0, JP)[None, :, None], tl.arange(0, OP)[None, None, :]
    found = ()
    for a in tl.static_range(A):
        at = x + (b * J + j) * (A * O) + a * O + o
        found = found + (tl.load(at, mask=(j < J) & (o < O), other=0.0).to(tl.float32) * factor,)
    return found


@triton.jit
def _transforms(W, i, I, J, K, O, JP, KP, OP):
    """Where those of children i [IC] lie, and which there are: [IC,JP,KP,OP]."""
    i, j = i[:, None, None, None], tl.arange(0, JP)[None, :, None, None]
    k, o = tl.arange(0, KP)[None, None, :, None], tl.arange(0, OP)[None, None, None, :]
    return W + ((i * J + j) * K + k) * O + o, (i < I) & (j < J) & (k < K) & (o < O)


@triton.jit
def _rows(i, b, a, I, A, K, KP):
    """Where row a of the poses of children i [IC] lies, and which there are: [IC,KP]."""
    k = tl.arange(0, KP)[None, :]
    return (b * I + i[:, None]) * (A * K) + a * K + k, (i < I)[:, None] & (k < K)


@triton.jit
def _votes(u, Wt, i, b, I, A, K, KP):
    """A tuple of vote rows [IC,JP,OP]."""
    V = ()
    for a in tl.static_range(A):
        at, mask = _rows(i, b, a, I, A, K, KP)
        U = tl.load(u + at, mask=mask, other=0.0).to(tl.float32)
        V = V + (tl.sum(U[:, None, :, None] * Wt, axis=2),)
    return V


@triton.jit
def _agreed(V, Q, A):
    """The dot products of votes with poses [IC,JP]."""
    found = tl.sum(V[0] * Q[0], axis=2)
    for a in tl.static_range(1, A):
        found += tl.sum(V[a] * Q[a], axis=2)
    return found


@triton.jit
def _weights(V, Q, D, J, A, JP):
    """Coefficients, and the gradient of the logits from D, that of the sums: [IC,JP] each."""
    agreed = _agreed(V, Q, A)
    C = normalised(agreed, J, True, 0.0, 1.0, JP)
    return C, slopes(agreed, C, _agreed(V, D, A), J, True, 0.0, 1.0, JP)


@triton.jit
def _leave(out, acc, split, b, B, factor, J, A, O, JP, OP):
    """Sums over the children of acc, a tuple of rows [IC,JP,OP], in out[split,b,j,a,o]."""
    j, o = tl.arange(0, JP)[:, None], tl.arange(0, OP)[None, :]
    for a in tl.static_range(A):
        to = out + ((split * B + b) * J + j) * (A * O) + a * O + o
        tl.store(to, tl.sum(acc[a], axis=0) * factor, mask=(j < J) & (o < O))


@kernel("B", "I", "NT", "n", "scale")
def few_step(u, W, q, c, out, B, I, NT, n, scale, FIRST: tl.constexpr, STORE: tl.constexpr, J: tl.constexpr,
             A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, JP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
             IC: tl.constexpr):  # fmt: skip
    """Sums out[split,b,j,a,o] over the children of the program, by parents q[n]; coefficients c[b,i,j] if STORE."""
    in_turn()
    b, split = tl.program_id(0), tl.program_id(1)
    if not FIRST:
        Q = _poses(q + n * (B * J * A * O), b, scale, J, A, O, JP, OP)
    acc = ()
    for _ in tl.static_range(A):
        acc = acc + (tl.zeros((IC, JP, OP), tl.float32),)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)
        at, mask = _transforms(W, i, I, J, K, O, JP, KP, OP)
        V = _votes(u, tl.load(at, mask=mask, other=0.0).to(tl.float32), i, b, I, A, K, KP)
        new = ()
        if FIRST:
            for a in tl.static_range(A):
                new = new + (acc[a] + V[a],)
        else:
            C = normalised(_agreed(V, Q, A), J, True, 0.0, 1.0, JP)
            if STORE:
                jj = tl.arange(0, JP)[None, :]
                tl.store(c + (b * I + i[:, None]) * J + jj, C, mask=(i < I)[:, None] & (jj < J))
            for a in tl.static_range(A):
                new = new + (acc[a] + C[:, :, None] * V[a],)
        acc = new
    _leave(out, acc, split, b, B, 1.0 / J if FIRST else 1.0, J, A, O, JP, OP)


@kernel("B", "I", "NT", "scale")
def few_step_back(u, W, q, g, du, dW, dq, B, I, NT, scale, FIRST: tl.constexpr, J: tl.constexpr, A: tl.constexpr,
                  K: tl.constexpr, O: tl.constexpr, JP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                  IC: tl.constexpr):  # fmt: skip
    """Gradients du[b,i,a,k], dW[b,i,j,k,o] and, in parts, dq[split,b,j,a,o], from g[b,j,a,o], that of the sums.

    As in `attention.gradients`.
    """
    in_turn()
    b, split = tl.program_id(0), tl.program_id(1)
    D = _poses(g, b, 1.0 / J if FIRST else 1.0, J, A, O, JP, OP)
    acc = ()
    if not FIRST:
        Q = _poses(q, b, scale, J, A, O, JP, OP)
        for _ in tl.static_range(A):
            acc = acc + (tl.zeros((IC, JP, OP), tl.float32),)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)
        at, there = _transforms(W, i, I, J, K, O, JP, KP, OP)
        Wt = tl.load(at, mask=there, other=0.0).to(tl.float32)
        new = ()
        if not FIRST:
            V = _votes(u, Wt, i, b, I, A, K, KP)
            C, gl = _weights(V, Q, D, J, A, JP)
        by_W = tl.zeros((IC, JP, KP, OP), tl.float32)
        for a in tl.static_range(A):
            if FIRST:
                gV = tl.broadcast_to(D[a], (IC, JP, OP))
            else:
                gV = C[:, :, None] * D[a] + gl[:, :, None] * Q[a]
                new = new + (acc[a] + gl[:, :, None] * V[a],)
            row, mask = _rows(i, b, a, I, A, K, KP)
            U = tl.load(u + row, mask=mask, other=0.0).to(tl.float32)
            by_W += U[:, None, :, None] * gV[:, :, None, :]
            tl.store(du + row, tl.sum(tl.sum(Wt * gV[:, :, None, :], axis=3), axis=1), mask=mask)
        tl.store(_transforms(dW + b * (I * J * K * O), i, I, J, K, O, JP, KP, OP)[0], by_W, mask=there)
        acc = new
    if not FIRST:
        _leave(dq, acc, split, b, B, scale, J, A, O, JP, OP)


@kernel("B", "I", "NT", "n", "scale")
def few_parents(u, W, q, x, out, B, I, NT, n, scale, J: tl.constexpr, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                JP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr, IC: tl.constexpr):  # fmt: skip
    """The gradient by parents q[n] of a step, in parts out[split,b,j,a,o], from x[n+1], that of its sums."""
    in_turn()
    b, split, size = tl.program_id(0), tl.program_id(1), B * J * A * O
    Q, D = _poses(q + n * size, b, scale, J, A, O, JP, OP), _poses(x + (n + 1) * size, b, 1.0, J, A, O, JP, OP)
    acc = ()
    for _ in tl.static_range(A):
        acc = acc + (tl.zeros((IC, JP, OP), tl.float32),)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)
        at, mask = _transforms(W, i, I, J, K, O, JP, KP, OP)
        V = _votes(u, tl.load(at, mask=mask, other=0.0).to(tl.float32), i, b, I, A, K, KP)
        gl = _weights(V, Q, D, J, A, JP)[1]
        new = ()
        for a in tl.static_range(A):
            new = new + (acc[a] + gl[:, :, None] * V[a],)
        acc = new
    _leave(out, acc, split, b, B, scale, J, A, O, JP, OP)


@kernel("B", "I", "NT", "scale")
def few_gradients(u, W, q, x, du, dW, B, I, NT, scale, T: tl.constexpr, J: tl.constexpr, A: tl.constexpr,
                  K: tl.constexpr, O: tl.constexpr, JP: tl.constexpr, KP: tl.constexpr, OP: tl.constexpr,
                  IC: tl.constexpr):  # fmt: skip
    """Gradients du[b,i,a,k] and dW[b,i,j,k,o] of all T steps at once, from x[t], those of their sums.

    x[0], of the step whose coefficients are all alike, comes divided among the parents.
    """
    in_turn()
    b, split, size = tl.program_id(0), tl.program_id(1), B * J * A * O
    first = _poses(x, b, 1.0, J, A, O, JP, OP)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)
        at, there = _transforms(W, i, I, J, K, O, JP, KP, OP)
        Wt = tl.load(at, mask=there, other=0.0).to(tl.float32)
        V = _votes(u, Wt, i, b, I, A, K, KP)
        gV = ()
        for a in tl.static_range(A):
            gV = gV + (tl.broadcast_to(first[a], (IC, JP, OP)),)
        for t in tl.static_range(1, T):
            Q, D = _poses(q + (t - 1) * size, b, scale, J, A, O, JP, OP), _poses(x + t * size, b, 1.0, J, A, O, JP, OP)
            C, gl = _weights(V, Q, D, J, A, JP)
            more = ()
            for a in tl.static_range(A):
                more = more + (gV[a] + C[:, :, None] * D[a] + gl[:, :, None] * Q[a],)
            gV = more
        by_W = tl.zeros((IC, JP, KP, OP), tl.float32)
        for a in tl.static_range(A):
            row, mask = _rows(i, b, a, I, A, K, KP)
            U = tl.load(u + row, mask=mask, other=0.0).to(tl.float32)
            by_W += U[:, None, :, None] * gV[a][:, :, None, :]
            tl.store(du + row, tl.sum(tl.sum(Wt * gV[a][:, :, None, :], axis=3), axis=1), mask=mask)
        tl.store(_transforms(dW + b * (I * J * K * O), i, I, J, K, O, JP, KP, OP)[0], by_W, mask=there)


def few_forward(
    launch: Launch, u: Tensor, W: Tensor, q: Tensor | None, scale: float, coefficients: bool
) -> tuple[Tensor, Tensor]:
    """As `calls.attention_forward`, of a list u [b,i,a,k]."""
    s, u, W = sizes_of(u, W), u.contiguous(), W.contiguous()
    out = u.new_empty((launch.splits, s.b, s.j, s.a, s.o), dtype=torch.float32)
    c = out.new_empty((s.b, s.i, s.j) if coefficients else 0)
    given = out if q is None else q.contiguous()
    numbers, which = (s.b, s.i, launch.tiles, 0, scale), {"FIRST": q is None, "STORE": coefficients}
    few_step(launch, kind_of(u, W, given), u, W, given, c, out, *numbers, **which)
    return total(out), c


def few_backward(
    launch: Launch, g: Tensor, u: Tensor, W: Tensor, q: Tensor | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As `calls.attention_backward`, of a list."""
    s, u, W, g = sizes_of(u, W), u.contiguous(), W.contiguous(), g.contiguous()
    du, given = torch.empty_like(u), g if q is None else q.contiguous()
    dW = W.new_empty((s.b, *W.shape), dtype=W.dtype if s.b == 1 else torch.float32)
    whole = launch.splits == 1
    dq = g.new_empty(
        (launch.splits, *(g.shape if q is not None else (0,))), dtype=given.dtype if whole else torch.float32
    )
    numbers = (s.b, s.i, launch.tiles, scale)
    few_step_back(launch, kind_of(u, W, given, g), u, W, given, g, du, dW, dq, *numbers, FIRST=q is None)
    return du, total(dW, W.dtype), total(dq, given.dtype) if q is not None else dq[0]


def few_steps_forward(
    plan: FewPlan, u: Tensor, W: Tensor, s: Sizes, T: int, scale: float, coefficients: bool
) -> tuple[Tensor, ...]:
    """Poses and the last coefficients, if asked for; then sums of all steps, and poses of all but the last."""
    part = u.new_empty((plan.step.splits, s.b, s.j, s.a, s.o), dtype=torch.float32)
    poses, sums = torch.empty_like(part[0]), part.new_empty((T, *part.shape[1:]))
    steps, c = part.new_empty((T - 1, *part.shape[1:])), part.new_empty((s.b, s.i, s.j) if coefficients else 0)
    run = LaunchSequence(plan.sequences, kind_of(u, W), u.dtype, W.dtype, T, coefficients)
    for t in range(T):
        which = {"FIRST": t == 0, "STORE": coefficients and t == T - 1}
        run(few_step, plan.step, u, W, steps, c, part, s.b, s.i, plan.step.tiles, t - 1, scale, **which)
        run(sum_and_squash, plan.reduce, part, sums, steps, poses, s.b, plan.step.splits, t, 1.0, T=T, NORM=True)
    run.end()
    return poses, c, sums, steps


def few_steps_backward(
    plan: FewPlan, g: Tensor, u: Tensor, W: Tensor, s: Sizes, saved: tuple[Tensor, Tensor], T: int, scale: float
) -> tuple[Tensor, Tensor]:
    """Gradients by children and transforms."""
    (sums, steps), step = saved, plan.step
    part, x = sums.new_empty((step.splits, *g.shape)), torch.empty_like(sums)
    run = LaunchSequence(plan.sequences, kind_of(u, W, g), u.dtype, W.dtype, g.dtype, T)
    for t in range(T - 1, -1, -1):
        numbers = (s.b, step.splits, t, t, 1.0 if t else 1 / s.j)
        run(sum_and_squash_backward, plan.reduce, part, sums, g, x, *numbers, T=T, NORM=True)
        if t > 0:
            run(few_parents, step, u, W, steps, x, part, s.b, s.i, step.tiles, t - 1, scale)
    del part  # before the gradients are allocated
    du, dW = torch.empty_like(u), W.new_empty((s.b, *W.shape), dtype=W.dtype if s.b == 1 else torch.float32)
    run(few_gradients, step, u, W, steps, x, du, dW, s.b, s.i, step.tiles, scale, T=T)
    run.end()
    return du, total(dW, W.dtype)
