"""Dynamic and max-min routing of small layers and few samples: as `resident`, with parents shared out among programs.

An iteration is one launch. A program holds the votes of all children of a sample for some parents, so that it sums them
up, squashes the sums and finds the logits of the next iteration while they are in its registers. What parents have to
know of each other are those logits [b,i,j], which every program of the next launch normalises anew.

On the way back gradients of coefficients pass between launches as logits do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import LaunchSequence, in_turn, kernel
from capsroute.form.launches.stored_votes import ResidentPlan
from capsroute.form.loop.max_min import extremes, parts, shares, slope, stretched, summed
from capsroute.form.loop.plain import Prior, Schedule
from capsroute.form.loop.resident import by_votes, made_votes, resident_backward, resident_forward
from capsroute.form.loop.walks import moved, or_one, reached, with_prior
from capsroute.form.sizes import Sizes
from capsroute.form.tiles import exponential, there
from capsroute.form.updates import squashed, updated, updated_gradient


@triton.jit
def _votes(b, j, I, J, F, IC, FP):
    """Where votes [b,i,j,f] of all children for parents j [JT, 1] lie, and which there are: [JT, IC, FP]."""
    i, j, f = tl.arange(0, IC)[None, :, None], j[:, :, None], tl.arange(0, FP)[None, None, :]
    return ((b * I + i) * J + j) * F + f, (i < I) & (j < J) & (f < F)


@triton.jit
def _poses(b, j, J, F, FP):
    """Where poses [b,j,f] of parents j [JT, 1] lie, and which there are: [JT, FP]."""
    f = tl.arange(0, FP)[None, :]
    return (b * J + j) * F + f, (j < J) & (f < F)


@triton.jit
def _pairs(b, j, I, J, IC):
    """Where numbers [b,i,j] of all children and parents j [N, 1] lie, and which there are: [N, IC]."""
    i = tl.arange(0, IC)[None, :]
    return (b * I + i) * J + j, (i < I) & (j < J)


@triton.jit
def _coefficients(logits, b, j, I, J, lower, upper, SOFTMAX, IC, JP):
    """Of all children and parents j [JT, 1], from the logits of all parents: [JT, IC]."""
    every = tl.arange(0, JP)[:, None]
    at, mask = _pairs(b, every, I, J, IC)
    x = tl.load(logits + at, mask=mask, other=0.0)
    at, mask = _pairs(b, j, I, J, IC)
    own = tl.load(logits + at, mask=mask, other=0.0)
    if SOFTMAX:
        high = reached(tl.max(tl.where(every < J, x, -float("inf")), axis=0, keep_dims=True), SOFTMAX)
        total = tl.sum(exponential(tl.where(every < J, x - high, -float("inf"))), axis=0, keep_dims=True)
        total = or_one(total, SOFTMAX)
        return tl.where(j < J, exponential(tl.where(j < J, own - high, -float("inf"))) / total, 0.0)
    else:
        high, low = extremes(x, every < J, 0)
        return tl.where(j < J, stretched(own, high, low, lower, upper), 0.0)


@triton.jit
def _slopes(logits, by_c, b, j, I, J, lower, upper, SOFTMAX, IC, JP):
    """As `_coefficients`, and the gradient of the logits from by_c, that of the coefficients of all parents."""
    every = tl.arange(0, JP)[:, None]
    at, mask = _pairs(b, every, I, J, IC)
    x, g = tl.load(logits + at, mask=mask, other=0.0), tl.load(by_c + at, mask=mask, other=0.0)
    at, mask = _pairs(b, j, I, J, IC)
    own, own_g = tl.load(logits + at, mask=mask, other=0.0), tl.load(by_c + at, mask=mask, other=0.0)
    if SOFTMAX:
        high = reached(tl.max(tl.where(every < J, x, -float("inf")), axis=0, keep_dims=True), SOFTMAX)
        e = exponential(tl.where(every < J, x - high, -float("inf")))
        total = or_one(tl.sum(e, axis=0, keep_dims=True), SOFTMAX)
        mean = tl.sum(e / total * g, axis=0, keep_dims=True)
        C = tl.where(j < J, exponential(tl.where(j < J, own - high, -float("inf"))) / total, 0.0)
        return C, moved(own, C * (own_g - mean), SOFTMAX)
    else:
        high, low = extremes(x, every < J, 0)
        each = shares(summed(parts(x, g, high, low, every < J), 0))
        C = tl.where(j < J, stretched(own, high, low, lower, upper), 0.0)
        return C, tl.where(j < J, slope(own, own_g, high, low, each, lower, upper), 0.0)


@kernel("B", "I", "J", "t", "lower", "upper", "first", "scale", "p_i")
def split_step(V, logits, sums, queries, poses, c, prior, B, I, J, t, lower, upper, first, scale, p_i,
               NORM: tl.constexpr, STORE: tl.constexpr, T: tl.constexpr, SOFTMAX: tl.constexpr, F: tl.constexpr,
               IC: tl.constexpr, JT: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Iteration t of a sample and JT parents, from their votes V [b,i,j,f] and logits[t-1] [b,i,j]: sums[t], and
    queries[t] and logits[t], or in the last the poses, and c [i,j,b] if STORE."""
    in_turn()
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)[:, None]
    size, pairs = B * J * F, B * I * J
    from_V, those = _votes(b, j, I, J, F, IC, FP)
    U = tl.load(V + from_V, mask=those, other=0.0).to(tl.float32)
    at, mask = _poses(b, j, J, F, FP)
    if t == 0:
        s = tl.sum(U, axis=1) * first
    else:
        C = _coefficients(logits + (t - 1) * pairs, b, j, I, J, lower, upper, SOFTMAX, IC, JP)
        i = tl.arange(0, IC)[None, :]
        tl.store(c + (i * J + j) * B + b, C, mask=(i < I) & (j < J) & there(T - 2 if STORE else T, t))
        s = tl.sum(C[:, :, None] * U, axis=1)
    tl.store(sums + t * size + at, s, mask=mask)
    v = updated(s, mask, F, NORM, t == T - 1)
    if t == T - 1:
        tl.store(poses + at, v, mask=mask)
    else:
        if NORM:
            v = v * scale
        else:
            for n in range(t):
                v += squashed(tl.load(sums + n * size + at, mask=mask, other=0.0))
        q = v.to(queries.dtype.element_ty)
        tl.store(queries + t * size + at, q, mask=mask)
        to, there_is = _pairs(b, j, I, J, IC)
        i = tl.arange(0, IC)[None, :]
        found = with_prior(tl.sum(U * q.to(tl.float32)[:, None, :], axis=2), prior, i * p_i + j, there_is, SOFTMAX)
        tl.store(logits + t * pairs + to, found, mask=there_is)


@triton.jit
def _by_sums(g, sums, by_poses, t, at, mask, size, T, F, NORM):
    """The gradient of the sums of iteration t, from that of its poses: g of the last, by_poses [T-2-t] before."""
    if t == T - 1:
        by = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    else:
        by = tl.load(by_poses + (T - 2 - t) * size + at, mask=mask, other=0.0)
    return updated_gradient(tl.load(sums + t * size + at, mask=mask, other=0.0), by, mask, F, NORM, t == T - 1)


@kernel("B", "I", "J", "p_i", "given", "gc_b", "gc_i", "gc_j")
def split_logits(V, logits, by_c, g, g_c, sums, queries, prior, B, I, J, p_i, given, gc_b, gc_i, gc_j,
                 SOFTMAX: tl.constexpr, NORM: tl.constexpr, T: tl.constexpr, STOP: tl.constexpr, F: tl.constexpr,
                 IC: tl.constexpr, JT: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Where the way back starts, for a sample and JT parents: logits [t,b,i,j] of all iterations but the first, and
    by_c[T-2], the gradient of the last coefficients."""
    in_turn()
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)[:, None]
    size, pairs = B * J * F, B * I * J
    from_V, those = _votes(b, j, I, J, F, IC, FP)
    U = tl.load(V + from_V, mask=those, other=0.0).to(tl.float32)
    at, mask = _poses(b, j, J, F, FP)
    to, there_is = _pairs(b, j, I, J, IC)
    for t in range(T - 1):
        q = tl.load(queries + t * size + at, mask=mask, other=0.0).to(tl.float32)
        i = tl.arange(0, IC)[None, :]
        found = with_prior(tl.sum(U * q[:, None, :], axis=2), prior, i * p_i + j, there_is, SOFTMAX)
        tl.store(logits + t * pairs + to, found, mask=there_is)
    i = tl.arange(0, IC)[None, :]
    by = tl.load(g_c + b * gc_b + i * gc_i + j * gc_j, mask=there_is & there(0, given), other=0.0).to(tl.float32)
    if not STOP:
        by += tl.sum(U * _by_sums(g, sums, sums, T - 1, at, mask, size, T, F, NORM)[:, None, :], axis=2)
    tl.store(by_c + (T - 2) * pairs + to, by, mask=there_is)


@kernel("B", "I", "J", "t", "lower", "upper", "first", "scale")
def split_step_backward(V, logits, by_c, by_poses, g, sums, queries, by_prior, B, I, J, t, lower, upper, first, scale,
                        NORM: tl.constexpr, T: tl.constexpr, SOFTMAX: tl.constexpr, STOP: tl.constexpr, F: tl.constexpr,
                        IC: tl.constexpr, JT: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """The derivative of iteration t by its query, for a sample and JT parents: by_poses[T-1-t] and by_c[t-2].

    The last of them (t = 1, or STOP) puts the votes' gradient in their place: sum_t c_t s'_t + b'_t q_t.
    """
    in_turn()
    b, j = tl.program_id(0), tl.program_id(1) * JT + tl.arange(0, JT)[:, None]
    size, pairs = B * J * F, B * I * J
    from_V, those = _votes(b, j, I, J, F, IC, FP)
    U = tl.load(V + from_V, mask=those, other=0.0).to(tl.float32)
    at, mask = _poses(b, j, J, F, FP)
    if STOP:
        total = tl.zeros((JT, IC, FP), tl.float32)
    else:
        before = (t - 1) * pairs
        C, slope = _slopes(logits + before, by_c + before, b, j, I, J, lower, upper, SOFTMAX, IC, JP)
        by = tl.sum(slope[:, :, None] * U, axis=1)
        if NORM:
            by = by * scale
        else:
            by += tl.load(by_poses + (T - 2 - t) * size + at, mask=mask & there(t, T - 1), other=0.0)
        x = updated_gradient(tl.load(sums + (t - 1) * size + at, mask=mask, other=0.0), by, mask, F, NORM, False)
        to, there_is = _pairs(b, j, I, J, IC)
        tl.store(by_poses + (T - 1 - t) * size + at, by, mask=mask & there(1, t))
        tl.store(by_c + (t - 2) * pairs + to, tl.sum(U * x[:, None, :], axis=2), mask=there_is & there(1, t))
        if SOFTMAX == 2:
            i = tl.arange(0, IC)[None, :]
            tl.store(by_prior + (i * J + j) * B + b, slope, mask=(i < I) & (j < J))
        total = tl.broadcast_to(x[:, None, :] * first, (JT, IC, FP))
    if STOP or t == 1:
        for r in range(T - 1 if STOP else 1, T):
            if STOP or r > 1:  # of the first, which is t, they are known
                before = (r - 1) * pairs
                C, slope = _slopes(logits + before, by_c + before, b, j, I, J, lower, upper, SOFTMAX, IC, JP)
            q = tl.load(queries + (r - 1) * size + at, mask=mask, other=0.0).to(tl.float32)
            x = _by_sums(g, sums, by_poses, r, at, mask, size, T, F, NORM)
            total += C[:, :, None] * x[:, None, :] + slope[:, :, None] * q[:, None, :]
        tl.store(V + from_V, total, mask=those)


def votes_forward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, results: tuple,
    how: Schedule, prior: Prior,
) -> None:  # fmt: skip
    """Poses, last coefficients, sums and queries, from children and transforms; see `resident` too."""
    if plan.step is None:
        return resident_forward(run, plan, u, W, s, dtype, results, how, prior)
    T, (poses, c, sums, queries) = how.iterations, results
    V, logits = made_votes(run, plan, u, W, s, dtype), sums.new_empty((T - 1, s.b, s.i, s.j))
    for t in range(T):
        tensors, numbers = (V, logits, sums, queries, poses, c, prior.given), (s.b, s.i, s.j, t, how.lower, how.upper)
        flags = {"NORM": how.norm, "STORE": how.coefficients, "T": T, "SOFTMAX": how.softmax}
        run(split_step, plan.step, *tensors, *numbers, how.first, how.factor, prior.stride, **flags)


def votes_backward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, g: Tensor,
    g_c: Tensor | None, saved: tuple[Tensor, Tensor], how: Schedule, prior: Prior,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by children and transforms."""
    if plan.step is None:
        return resident_backward(run, plan, u, W, s, dtype, g, g_c, saved, how, prior)
    T, stop, sizes = how.iterations, how.stop_gradient, (s.b, s.i, s.j)
    logits, by_c = (g.new_empty((T - 1, *sizes), dtype=torch.float32) for _ in range(2))
    by_poses = g.new_empty((0 if stop else T - 2, *g.shape), dtype=torch.float32)
    V = made_votes(run, plan, u, W, s, dtype)
    given, strides = (g, (0, 0, 0)) if g_c is None else (g_c, g_c.stride())
    has, flags = (int(g_c is not None), *strides), {"NORM": how.norm, "T": T, "SOFTMAX": how.softmax, "STOP": stop}
    to_logits = prior.given, *sizes, prior.stride, *has
    run(split_logits, plan.step, V, logits, by_c, g, given, *saved, *to_logits, **flags)
    for t in range(T - 1, T - 2 if stop else 0, -1):
        numbers = *sizes, t, how.lower, how.upper, how.first, how.factor
        run(split_step_backward, plan.step, V, logits, by_c, by_poses, g, *saved, prior.gradient, *numbers, **flags)
    del logits, by_c, by_poses  # before the gradients are allocated
    prior.add_up()
    return by_votes(run, plan, u, W, V, s)
