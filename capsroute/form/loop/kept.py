"""Dynamic and max-min routing of few samples: votes are made once, and programs walk over those of some children each.

Of few rows (sample, pose row) votes are no larger than the transforms, which passes read several times an iteration.
Here W is read where votes V [b,i,j,f] are made, f = (a, o), and where gradients are. A program has a share of a
sample's children and holds all parents, so that one walk over V finds agreement, coefficients and weighted sums; those
of all shares are added up, in a fixed order, by the small kernel that squashes them (`reductions`).

Votes are kept for the way back, or made again (`LOOP`, `calls`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.contractions.gradients import both_gradients
from capsroute.form.launch import LaunchSequence, in_turn, kernel
from capsroute.form.launches.stored_votes import KeptPlan
from capsroute.form.loop.plain import Prior, Schedule
from capsroute.form.loop.reductions import sum_and_squash, sum_and_squash_backward
from capsroute.form.loop.resident import agreed, make_and_sum_votes, make_votes, votes_of
from capsroute.form.loop.walks import normalised, slopes, unmoved, with_prior
from capsroute.form.rows.totals import total
from capsroute.form.sizes import Sizes


@triton.jit
def _none(APART, IC, JP, FP):
    """Where `_with` starts. Children of a tile that lie APART, in several threads, have a sum each, to the end."""
    return tl.zeros((IC if APART else 1, JP, FP), tl.float32)


@triton.jit
def _agreed(U, q, APART):
    """Votes [IC, JP, FP] with q [JP, FP]: [IC, JP]; gathered, unless all warps share the parents of a child."""
    if APART:
        return agreed(U, q)
    else:
        return tl.sum(U * q[None, :, :], axis=2)


@triton.jit
def _with(some, weights, U, APART):
    """Sums with those of a tile of votes [IC, JP, FP], by weights [IC, JP]."""
    more = weights[:, :, None] * U
    return some + (more if APART else tl.sum(more, axis=0, keep_dims=True))


@kernel("I", "J", "N", "t", "plane", "lower", "upper", "p_i")
def kept_walk(V, queries, c, part, prior, B, I, J, N, t, plane, lower, upper, p_i, SOFTMAX: tl.constexpr,
              STORE: tl.constexpr, F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr,
              APART: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """A program holds all parents of a sample, and walks over the votes V [b,i,j,f] of N children, IC at a time.

    c = normalise(agreement with queries[t]), stored as c[plane,i,j,b] if STORE; part[share,b,j,f] = weighted sums. The
    prior [i,j] of logits (SOFTMAX 2) has p_i numbers from one child to the next.
    """
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    at, mask = (b * J + j) * F + f, (j < J) & (f < F)
    q = tl.load(queries + t * (B * J * F) + at, mask=mask, other=0.0).to(tl.float32)
    some = _none(APART, IC, JP, FP)
    start, stop = share * N, tl.minimum(I, share * N + N)
    for i0 in tl.range(start, stop, IC, num_stages=NS):
        U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
        i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        logits = with_prior(_agreed(U, q, APART), prior, i * p_i + jj, (i < I) & (jj < J), SOFTMAX)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP)
        if STORE:
            tl.store(c + plane * (I * J * B) + (i * J + jj) * B + b, C, mask=(i < I) & (jj < J))
        some = _with(some, C, U, APART)
    tl.store(part + share * (B * J * F) + at, tl.sum(some, axis=0), mask=mask)


@kernel("I", "J", "N", "t", "plane", "lower", "upper", "p_i")
def kept_walk_back(V, queries, x, c, g_c, gl, part, prior, B, I, J, N, t, plane, lower, upper, p_i, gc_b, gc_i, gc_j,
                   SOFTMAX: tl.constexpr, STORE: tl.constexpr, HAS_GC: tl.constexpr, STOP: tl.constexpr,
                   F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr, APART: tl.constexpr,
                   NS: tl.constexpr):  # fmt: skip
    """As `kept_walk`: gl[t,i,j,b] = gradient by the logits, from x[t], that of the sums; part, that by queries[t].

    Softmax reads its coefficients c[plane,i,j,b]; max-min makes its logits again (and STOREs c). HAS_GC adds the
    caller's gradient of the coefficients; STOP takes only that, and no gradient goes on to the query.
    """
    in_turn()
    b, share = tl.program_id(0), tl.program_id(1)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    at, mask = (b * J + j) * F + f, (j < J) & (f < F)
    c += plane * (I * J * B)
    if not SOFTMAX:
        q = tl.load(queries + t * (B * J * F) + at, mask=mask, other=0.0).to(tl.float32)
    if not STOP:
        by_sums = tl.load(x + t * (B * J * F) + at, mask=mask, other=0.0)
        some = _none(APART, IC, JP, FP)
    start, stop = share * N, tl.minimum(I, share * N + N)
    for i0 in tl.range(start, stop, IC, num_stages=NS):
        i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        pair, pairs = (i * J + jj) * B + b, (i < I) & (jj < J)
        U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
        g = tl.zeros((IC, JP), tl.float32)
        if HAS_GC:
            g += tl.load(g_c + b * gc_b + i * gc_i + jj * gc_j, mask=pairs, other=0.0).to(tl.float32)
        if not STOP:
            g += _agreed(U, by_sums, APART)
        if SOFTMAX:
            C = tl.load(c + pair, mask=pairs, other=0.0).to(tl.float32)
            slope = slopes(C, C, g, J, SOFTMAX, lower, upper, JP)
            slope = unmoved(slope, prior, i * p_i + jj, pairs, SOFTMAX)
        else:
            logits = _agreed(U, q, APART)
            slope = slopes(logits, logits, g, J, SOFTMAX, lower, upper, JP)
            if STORE:
                tl.store(c + pair, normalised(logits, J, SOFTMAX, lower, upper, JP), mask=pairs)
        tl.store(gl + t * (I * J * B) + pair, slope, mask=pairs)
        if not STOP:
            some = _with(some, slope, U, APART)
    if not STOP:
        tl.store(part + share * (B * J * F) + at, tl.sum(some, axis=0), mask=mask)


def kept_forward(
    run: LaunchSequence, plan: KeptPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, results: tuple,
    how: Schedule, store: bool, prior: Prior,
) -> Tensor:  # fmt: skip
    """Poses, last coefficients, sums, queries, earlier coefficients if they are to be stored; returns the votes."""
    T, sizes, (poses, last, sums, queries, earlier) = how.iterations, (s.b, s.i, s.j), results
    V = u.new_empty((*sizes, s.a, s.o), dtype=dtype)
    part = sums.new_empty((plan.splits + 1, *poses.shape))  # behind the sums of all shares: the query, accumulated
    flags = {"T": T, "NORM": how.norm}
    run(make_and_sum_votes, plan.sum, u, W, V, part, *sizes, plan.sum.tiles, how.first)
    run(sum_and_squash, plan.reduce, part, sums, queries, poses, s.b, plan.sum.splits, 0, how.factor, **flags)
    for t in range(1, T):
        c, plane, which = (last, 0, True) if t == T - 1 else (earlier, t - 1, store)
        numbers = *sizes, plan.walk.tiles, t - 1, plane, how.lower, how.upper, prior.stride
        run(kept_walk, plan.walk, V, queries, c, part, prior.given, *numbers, SOFTMAX=how.softmax, STORE=which)
        run(sum_and_squash, plan.reduce, part, sums, queries, poses, s.b, plan.walk.splits, t, how.factor, **flags)
    return V


def kept_backward(
    run: LaunchSequence, plan: KeptPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, g: Tensor,
    g_c: Tensor | None, saved: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], how: Schedule, prior: Prior,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by children and transforms; of the last iteration alone, where they stop there.

    Votes that were not kept, of no elements, are made again, if they are needed.
    """
    T, stop, sizes, (c, sums, queries, earlier, V) = how.iterations, how.stop_gradient, (s.b, s.i, s.j), saved
    walked = range(T - 1, 0, -1) if not stop else (T - 1,) if g_c is not None else ()
    if walked and not V.numel():
        V = u.new_empty((*sizes, s.a, s.o), dtype=dtype)
        run(make_votes, plan.votes, u, W, V, *sizes)
    if not how.softmax and not stop:
        earlier = u.new_empty((T - 2, s.i, s.j, s.b), dtype=dtype)
    gl = prior.gradient[None] if how.softmax == 2 else sums.new_empty((len(walked), s.i, s.j, s.b))
    x = torch.empty_like(sums[:1] if stop else sums)  # gradients of the sums, the first iteration's last
    part = sums.new_empty((plan.splits + 1, *g.shape))
    if stop:
        sums, queries = sums[-1], queries[-1]
        _back(run, plan, part, sums, g, x, 0, 0, 1, how)
    for t in walked:
        n, now = (0, c) if stop else (t - 1, c if t == T - 1 else earlier)
        if not stop:
            _back(run, plan, part, sums, g, x, t, n, T, how, 1.0 if t == T - 1 else how.factor)
        given, strides = (g_c, g_c.stride()) if t == T - 1 and g_c is not None else (g, (0, 0, 0))
        numbers = *sizes, plan.walk.tiles, n, 0 if now is c else n, how.lower, how.upper, prior.stride, *strides
        which = {"STORE": not how.softmax and t < T - 1, "HAS_GC": given is g_c, "STOP": stop, "SOFTMAX": how.softmax}
        run(kept_walk_back, plan.back, V, queries, x, now, given, gl, part, prior.given, *numbers, **which)
    if not stop:
        _back(run, plan, part, sums, g, x, 0, T - 1, T, how, how.factor * how.first)
    del part, V  # before the gradients are allocated
    flags = {"T": 2 if stop else T, "FIRST": not stop, "LOGITS": bool(walked)}
    splits = plan.gradients.splits
    du = u.new_empty((splits, *u.shape), dtype=u.dtype if splits == 1 else torch.float32)
    dW = torch.empty_like(W)
    terms = c, earlier, gl, x, queries
    run(both_gradients, plan.gradients, *terms, u, W, du, dW, *sizes, *c.stride(), **flags)
    return total(du, u.dtype, run=run), dW


def _back(run, plan: KeptPlan, part, sums, g, x, t: int, n: int, T: int, how: Schedule, scale: float = 1.0) -> None:
    """The gradient of the sums of iteration t of T, times scale, to x[n]."""
    numbers = g.shape[0], plan.back.splits, t, n, scale
    run(sum_and_squash_backward, plan.reduce, part, sums, g, x, *numbers, T=T, NORM=how.norm)
