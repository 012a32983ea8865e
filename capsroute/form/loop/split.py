"""Dynamic and max-min routing of small layers and few samples: as `resident`, with children shared out among programs.

An iteration is one launch. Each program of a sample leaves a partial sum over its children, and the one that comes last
adds them up, in a fixed order, squashes them and leaves the query of the next launch.

On the way back it leaves the gradient of the poses v_t; that of the sums s_t is made of it wherever it is needed.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import LaunchSequence, kernel
from capsroute.form.launches import ResidentPlan
from capsroute.form.lengths import squashed, squashed_gradient
from capsroute.form.loop.resident import agreed, by_votes, made_votes, slopes_of, votes_of
from capsroute.form.loop.walks import normalised
from capsroute.form.plan import Sizes
from capsroute.form.tiles import there

__all__ = ["split_backward", "split_forward"]


@triton.jit
def _comes_last(arrived, b, S):
    """Whether all S programs of a sample have left their sums. `arrived` [b] counts them, from zero at first."""
    tl.debug_barrier()
    return tl.atomic_add(arrived + b, 1) % S == S - 1


@triton.jit
def _together(part, mask, size, S):
    """The S partial sums of a sample: as `mask`."""
    total = tl.zeros(mask.shape, tl.float32)
    for share in tl.static_range(S):
        total += tl.load(part + share * size, mask=mask, other=0.0)
    return total


@kernel("B", "I", "J", "t", "lower", "upper", "first")
def split_walk(V, part, arrived, sums, queries, poses, c, B, I, J, t, lower, upper, first, T: tl.constexpr,
               SOFTMAX: tl.constexpr, F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr,
               N: tl.constexpr, S: tl.constexpr):  # fmt: skip
    """Iteration t of a sample and N of its children, whose votes are V [b,i,j,f]: part [share,b,j,f].

    The last program of a sample leaves sums[t], and queries[t] or the poses; in iteration T - 1 each leaves c [i,j,b].
    """
    b, share = tl.program_id(0), tl.program_id(1)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    size, at, mask = B * J * F, (b * J + j) * F + f, (j < J) & (f < F)
    q = tl.load(queries + (t - 1) * size + at, mask=mask & there(0, t), other=0.0).to(tl.float32)
    some = tl.zeros((IC, JP, FP), tl.float32)
    for i0 in range(share * N, tl.minimum(share * N + N, I), IC):
        U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
        if t == 0:
            some += U
        else:
            C = normalised(agreed(U, q), J, SOFTMAX, lower, upper, JP)
            i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
            tl.store(c + (i * J + jj) * B + b, C, mask=(i < I) & (jj < J) & there(T - 2, t))
            some += C[:, :, None] * U
    tl.store(part + share * size + at, tl.sum(some, axis=0) * tl.where(t == 0, first, 1.0), mask=mask)
    if _comes_last(arrived, b, S):
        s = _together(part + at, mask, size, S)
        tl.store(sums + t * size + at, s, mask=mask)
        v = squashed(s)
        if t == T - 1:
            tl.store(poses + at, v, mask=mask)
        else:
            for n in range(t):
                v += squashed(tl.load(sums + n * size + at, mask=mask, other=0.0))
            tl.store(queries + t * size + at, v, mask=mask)


@triton.jit
def _by_sums(g, sums, by_poses, t, at, mask, size, T):
    """The gradient of the sums of iteration t, from that of its poses: g of the last, by_poses [T-1-t] before."""
    if t == T - 1:
        by = tl.load(g + at, mask=mask, other=0.0).to(tl.float32)
    else:
        by = tl.load(by_poses + (T - 2 - t) * size + at, mask=mask, other=0.0)
    return squashed_gradient(tl.load(sums + t * size + at, mask=mask, other=0.0), by)


@kernel("B", "I", "J", "n", "given", "lower", "upper", "gc_b", "gc_i", "gc_j")
def split_walk_backward(V, by_poses, arrived, g, g_c, sums, queries, B, I, J, n, given, lower, upper, gc_b, gc_i, gc_j,
                        T: tl.constexpr, SOFTMAX: tl.constexpr, F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr,
                        FP: tl.constexpr, N: tl.constexpr, S: tl.constexpr):  # fmt: skip
    """The derivative of iteration T - 1 - n by its query, of a sample and N of its children: by_poses[n] [b,j,f].

    by_poses has T - 2 of these, and behind them the partial sums, in whose place comes the one of the first iteration.
    """
    b, share = tl.program_id(0), tl.program_id(1)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    size, at, mask = B * J * F, (b * J + j) * F + f, (j < J) & (f < F)
    t, part = T - 1 - n, by_poses + (T - 2) * size + at
    q = tl.load(queries + (t - 1) * size + at, mask=mask, other=0.0).to(tl.float32)
    x = _by_sums(g, sums, by_poses, t, at, mask, size, T)
    some = tl.zeros((IC, JP, FP), tl.float32)
    for i0 in range(share * N, tl.minimum(share * N + N, I), IC):
        U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
        _, slope = slopes_of(U, q, x, g_c, b, i0, I, J, gc_b, gc_i, gc_j, there(n, given), lower, upper, SOFTMAX, False,
                             IC, JP)  # fmt: skip
        some += slope[:, :, None] * U
    tl.store(part + share * size, tl.sum(some, axis=0), mask=mask)
    if _comes_last(arrived, b, S):
        total = _together(part, mask, size, S)
        total += tl.load(by_poses + (n - 1) * size + at, mask=mask & there(0, n), other=0.0)
        tl.debug_barrier()  # the first of the partial sums may be overwritten
        tl.store(by_poses + n * size + at, total, mask=mask)


@kernel("B", "I", "J", "given", "lower", "upper", "first", "gc_b", "gc_i", "gc_j")
def split_votes_backward(V, by_poses, g, g_c, sums, queries, B, I, J, given, lower, upper, first, gc_b, gc_i, gc_j,
                         T: tl.constexpr, SOFTMAX: tl.constexpr, STOP: tl.constexpr, F: tl.constexpr, IC: tl.constexpr,
                         JP: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """The votes' gradient in their place, of a sample and IC children: sum_t c_t s'_t + b'_t q_t."""
    b, i0 = tl.program_id(0), tl.program_id(1) * IC
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    size, at, mask = B * J * F, (b * J + j) * F + f, (j < J) & (f < F)
    U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
    total = tl.zeros((IC, JP, FP), tl.float32)
    if not STOP:
        total += _by_sums(g, sums, by_poses, 0, at, mask, size, T)[None, :, :] * first
    for t in range(T - 1 if STOP else 1, T):
        q = tl.load(queries + (t - 1) * size + at, mask=mask, other=0.0).to(tl.float32)
        x = _by_sums(g, sums, by_poses, t, at, mask, size, T)
        C, slope = slopes_of(U, q, x, g_c, b, i0, I, J, gc_b, gc_i, gc_j, there(T - 2, t) & there(0, given), lower,
                             upper, SOFTMAX, STOP, IC, JP)  # fmt: skip
        total += C[:, :, None] * x[None, :, :] + slope[:, :, None] * q[None, :, :]
    i, jj = i0 + tl.arange(0, IC)[:, None, None], tl.arange(0, JP)[None, :, None]
    ff = tl.arange(0, FP)[None, None, :]
    tl.store(V + ((b * I + i) * J + jj) * F + ff, total, mask=(i < I) & (jj < J) & (ff < F))


def split_forward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, results: tuple, how
) -> None:
    """As `resident_forward`."""
    assert plan.shares is not None
    (walk, _), (poses, c, sums, queries) = plan.shares, results
    part, arrived = sums.new_empty((walk.splits, *poses.shape)), sums.new_empty(s.b, dtype=torch.int32)
    V = made_votes(run, plan, u, W, s, dtype, arrived)
    bounds = how.lower, how.upper, how.first
    for t in range(how.iterations):
        operands = V, part, arrived, sums, queries, poses, c, s.b, s.i, s.j, t, *bounds
        run(split_walk, walk, *operands, T=how.iterations, SOFTMAX=how.softmax)


def split_backward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, g: Tensor,
    g_c: Tensor | None, saved: tuple[Tensor, Tensor], how,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """As `resident_backward`."""
    assert plan.shares is not None
    (walk, end), T, stop = plan.shares, how.iterations, how.stop_gradient
    arrived = g.new_empty(0 if stop else s.b, dtype=torch.int32)
    by_poses = g.new_empty((0 if stop else T - 2 + walk.splits, *g.shape), dtype=torch.float32)
    V = made_votes(run, plan, u, W, s, dtype, None if stop else arrived)
    given, strides = (g, (0, 0, 0)) if g_c is None else (g_c, g_c.stride())
    operands, has, flags = (g, given, *saved, s.b, s.i, s.j), int(g_c is not None), {"T": T, "SOFTMAX": how.softmax}
    for n in range(0 if stop else T - 1):
        numbers = n, has, how.lower, how.upper, *strides
        run(split_walk_backward, walk, V, by_poses, arrived, *operands, *numbers, **flags)
    numbers = has, how.lower, how.upper, how.first, *strides
    run(split_votes_backward, end, V, by_poses, *operands, *numbers, **flags, STOP=stop)
    del by_poses  # before the gradients are allocated
    return by_votes(run, plan, u, W, V, s)
