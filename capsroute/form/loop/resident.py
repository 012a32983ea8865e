"""Dynamic and max-min routing of small layers: votes are made once, and a whole loop over them is one kernel.

So are all steps of inverted attention, whose poses are NORMalised: the last of them, times a scale, are the query.

A program holds a sample: sums and queries of all parents in registers, and its votes [i, j, f], f = (a, o), in the
cache, which it walks over once an iteration. Backward makes the votes again, and puts their gradient in their place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.attention.kernels import operand
from capsroute.form.launch import LaunchSequence, in_turn, kernel
from capsroute.form.launches.stored_votes import ResidentPlan
from capsroute.form.loop.plain import Prior, Schedule
from capsroute.form.loop.walks import normalised, slopes, with_prior
from capsroute.form.sizes import Sizes
from capsroute.form.tiles import there
from capsroute.form.updates import updated, updated_gradient


@triton.jit
def _made(u, W, i, b, a, j, o, B, I, J, A, K, O):
    """Votes of a child: rows (b, a) [R, 1] and columns (j, o) [1, C]."""
    child, transform = (b * I + i) * (A * K) + a * K, (i * J + j) * (K * O) + o
    total = tl.zeros((b.shape[0], j.shape[1]), tl.float32)
    for k in tl.static_range(K):
        U = tl.load(u + child + k, mask=b < B, other=0.0).to(tl.float32)
        total += U * tl.load(W + transform + k * O, mask=j < J, other=0.0).to(tl.float32)
    return total


@kernel("B", "I", "J")
def make_votes(u, W, V, B, I, J, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, R: tl.constexpr,
               C: tl.constexpr):  # fmt: skip
    """A program makes the votes V [b,i,j,a,o] of one child, R rows (b, a) and C columns (j, o)."""
    in_turn()
    i = tl.program_id(0)
    row, n = tl.program_id(1) * R + tl.arange(0, R)[:, None], tl.program_id(2) * C + tl.arange(0, C)[None, :]
    b, a, j, o = row // A, row % A, n // O, n % O
    made = _made(u, W, i, b, a, j, o, B, I, J, A, K, O)
    tl.store(V + ((b * I + i) * J + j) * (A * O) + a * O + o, made, mask=(b < B) & (j < J))


@kernel("B", "I", "J", "N", "first")
def make_and_sum_votes(u, W, V, part, B, I, J, N, first, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr,
                       R: tl.constexpr, C: tl.constexpr):  # fmt: skip
    """As `make_votes` of N children, and their sum, all of them weighed by `first`: part [share,b,j,a,o]."""
    in_turn()
    share = tl.program_id(0)
    row, n = tl.program_id(1) * R + tl.arange(0, R)[:, None], tl.program_id(2) * C + tl.arange(0, C)[None, :]
    b, a, j, o = row // A, row % A, n // O, n % O
    mask, some = (b < B) & (j < J), tl.zeros((R, C), tl.float32)
    for i in range(share * N, tl.minimum(I, share * N + N)):
        made = _made(u, W, i, b, a, j, o, B, I, J, A, K, O)
        tl.store(V + ((b * I + i) * J + j) * (A * O) + a * O + o, made, mask=mask)
        some += made
    tl.store(part + ((share * B + b) * J + j) * (A * O) + a * O + o, some * first, mask=mask)


@triton.jit
def stored_of(V, b, i0, stop, I, J, F, IC, JP, FP):
    """A tile of a sample's votes [IC, JP, FP] of children before `stop`, as they are stored."""
    i, j = i0 + tl.arange(0, IC)[:, None, None], tl.arange(0, JP)[None, :, None]
    f = tl.arange(0, FP)[None, None, :]
    return tl.load(V + ((b * I + i) * J + j) * F + f, mask=(i < stop) & (j < J) & (f < F), other=0.0)


@triton.jit
def votes_of(V, b, i0, I, J, F, IC, JP, FP):
    """A tile of a sample's votes [IC, JP, FP]."""
    return stored_of(V, b, i0, I, I, J, F, IC, JP, FP).to(tl.float32)


@triton.jit
def agreed(U, q):
    """Votes [IC, JP, FP] with q [JP, FP]: [IC, JP].

    As all threads hold it that hold the votes, it would be normalised many times over, with every warp waiting for all
    others. Gathered, a child's parents lie in one warp.
    """
    x = tl.sum(U * q[None, :, :], axis=2)
    return tl.gather(x, tl.broadcast_to(tl.arange(0, x.shape[1])[None, :], x.shape), 1)


@kernel("B", "I", "J", "lower", "upper", "first", "scale", "p_i")
def resident_loop(V, poses, c, sums, queries, prior, B, I, J, lower, upper, first, scale, p_i, NORM: tl.constexpr,
                  STORE: tl.constexpr, T: tl.constexpr, SOFTMAX: tl.constexpr, F: tl.constexpr, IC: tl.constexpr,
                  JP: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """A program for each sample holds sums and queries, and walks over its votes V [b,i,j,f] once an iteration.

    It leaves poses [b,j,f], sums and queries [t,b,j,f] of every iteration, and the last c [i,j,b] if STORE. The prior
    [i,j] of logits (SOFTMAX 2) has p_i numbers from one child to the next.
    """
    in_turn()
    b = tl.program_id(0)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    at, mask = (b * J + j) * F + f, (j < J) & (f < F)
    some = tl.zeros((IC, JP, FP), tl.float32)
    for i0 in range(0, I, IC):
        some += votes_of(V, b, i0, I, J, F, IC, JP, FP)
    s = tl.sum(some, axis=0) * first
    tl.store(sums + at, s, mask=mask)
    v = updated(s, mask, F, NORM, False)
    total = v * scale if NORM else v
    for t in range(1, T):
        q = total.to(queries.dtype.element_ty)
        tl.store(queries + (t - 1) * (B * J * F) + at, q, mask=mask)
        q = q.to(tl.float32)
        some = tl.zeros((IC, JP, FP), tl.float32)
        for i0 in range(0, I, IC):
            U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
            i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
            logits = with_prior(agreed(U, q), prior, i * p_i + jj, (i < I) & (jj < J), SOFTMAX)
            C = normalised(logits, J, SOFTMAX, lower, upper, JP)
            tl.store(c + (i * J + jj) * B + b, C, mask=(i < I) & (jj < J) & there(T - 2 if STORE else T, t))
            some += C[:, :, None] * U
        s = tl.sum(some, axis=0)
        tl.store(sums + t * (B * J * F) + at, s, mask=mask)
        v = updated(s, mask, F, NORM, t == T - 1)
        total = v * scale if NORM else total + v
    tl.store(poses + at, v, mask=mask)


@triton.jit
def slopes_of(U, q, x, g_c, b, i0, I, J, gc_b, gc_i, gc_j, given, lower, upper, SOFTMAX, STOP, IC, JP, prior, p_i):
    """Coefficients and the gradient of the logits [IC, JP] of a tile of votes, from the gradient x of the sums."""
    i, j = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
    logits = with_prior(agreed(U, q), prior, i * p_i + j, (i < I) & (j < J), SOFTMAX)
    C = normalised(logits, J, SOFTMAX, lower, upper, JP)
    g = tl.load(g_c + b * gc_b + i * gc_i + j * gc_j, mask=(i < I) & (j < J) & given, other=0.0)
    if not STOP:
        g += agreed(U, x)
    return C, slopes(logits, C, g, J, SOFTMAX, lower, upper, JP)


@kernel("B", "I", "J", "given", "lower", "upper", "first", "scale", "p_i", "gc_b", "gc_i", "gc_j")
def resident_loop_backward(V, g, g_c, sums, queries, terms, prior, by_prior, B, I, J, given, lower, upper, first, scale,
                           p_i, gc_b, gc_i, gc_j, NORM: tl.constexpr, T: tl.constexpr, SOFTMAX: tl.constexpr,
                           STOP: tl.constexpr, F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr,
                           FP: tl.constexpr):  # fmt: skip
    """A program for each sample puts the votes' gradient in their place.

    sum_t c_t x_t + b'_t q_t, of gradients x of sums and b' of logits.

    terms [t,b,j,f] are x on their way, from the second iteration; by_prior [i,j,b] is b' of the one that has a prior.
    """
    in_turn()
    b = tl.program_id(0)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    size, at, mask = B * J * F, (b * J + j) * F + f, (j < J) & (f < F)
    FIRST: tl.constexpr = T - 1 if STOP else 1  # of the iterations that are differentiated and have queries
    x = updated_gradient(tl.load(sums + (T - 1) * size + at, mask=mask, other=0.0),
                         tl.load(g + at, mask=mask, other=0.0), mask, F, NORM, True)  # fmt: skip
    tl.store(terms + (T - 2) * size + at, x, mask=mask)
    tl.debug_barrier()
    if not STOP:
        by_queries = tl.zeros((JP, FP), tl.float32)
        for n in range(T - 1):
            t = T - 1 - n
            q = tl.load(queries + (t - 1) * size + at, mask=mask, other=0.0).to(tl.float32)
            some = tl.zeros((IC, JP, FP), tl.float32)
            for i0 in range(0, I, IC):
                U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
                _, slope = slopes_of(U, q, x, g_c, b, i0, I, J, gc_b, gc_i, gc_j, there(n, given), lower, upper,
                                     SOFTMAX, STOP, IC, JP, prior, p_i)  # fmt: skip
                some += slope[:, :, None] * U
            by_queries = tl.sum(some, axis=0) * scale if NORM else by_queries + tl.sum(some, axis=0)
            s = tl.load(sums + (t - 1) * size + at, mask=mask, other=0.0)
            x = updated_gradient(s, by_queries, mask, F, NORM, False)
            tl.store(terms + (t - 2) * size + at, x, mask=mask & there(1, t))
        tl.debug_barrier()
    for i0 in range(0, I, IC):
        U = votes_of(V, b, i0, I, J, F, IC, JP, FP)
        total = tl.zeros((IC, JP, FP), tl.float32)
        if not STOP:
            total += x[None, :, :] * first
        for t in range(FIRST, T):
            q = tl.load(queries + (t - 1) * size + at, mask=mask, other=0.0).to(tl.float32)
            y = tl.load(terms + (t - 1) * size + at, mask=mask, other=0.0)
            C, slope = slopes_of(U, q, y, g_c, b, i0, I, J, gc_b, gc_i, gc_j, there(T - 2, t) & there(0, given), lower,
                                 upper, SOFTMAX, STOP, IC, JP, prior, p_i)  # fmt: skip
            if SOFTMAX == 2:
                i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
                tl.store(by_prior + (i * J + jj) * B + b, slope, mask=(i < I) & (jj < J))
            total += C[:, :, None] * y[None, :, :] + slope[:, :, None] * q[None, :, :]
        i, jj = i0 + tl.arange(0, IC)[:, None, None], tl.arange(0, JP)[None, :, None]
        ff = tl.arange(0, FP)[None, None, :]
        tl.store(V + ((b * I + i) * J + jj) * F + ff, total, mask=(i < I) & (jj < J) & (ff < F))


@triton.jit
def _gradient(V, row, n, i, B, I, J, A, O):
    """Of the votes of child i: rows (b, a) and columns (j, o)."""
    b, a, j, o = (row // A)[:, None], (row % A)[:, None], (n // O)[None, :], (n % O)[None, :]
    return tl.load(V + ((b * I + i) * J + j) * (A * O) + a * O + o, mask=(b < B) & (j < J), other=0.0)


@triton.jit
def _by_children(W, V, du, row, i, B, I, J, A, K, O, KP, R, C, DT, PRECISION):
    k = tl.arange(0, KP)[None, :]
    total = tl.zeros((R, KP), tl.float32)
    for first in range(0, J * O, C):
        n = first + tl.arange(0, C)
        j, o = (n // O)[:, None], (n % O)[:, None]
        Wt = tl.load(W + (i * J + j) * (K * O) + k * O + o, mask=(j < J) & (k < K), other=0.0)
        G = operand(_gradient(V, row, n, i, B, I, J, A, O), DT, PRECISION)
        total = tl.dot(G, operand(Wt, DT, PRECISION), total, input_precision=PRECISION)
    b, a = (row // A)[:, None], (row % A)[:, None]
    tl.store(du + ((b * I + i) * A + a) * K + k, total, mask=(b < B) & (k < K))


@triton.jit
def _by_transforms(u, V, dW, n, i, B, I, J, A, K, O, KP, R, C, DT, PRECISION):
    k = tl.arange(0, KP)[:, None]
    total = tl.zeros((KP, C), tl.float32)
    for first in range(0, B * A, R):
        row = first + tl.arange(0, R)
        b, a = (row // A)[None, :], (row % A)[None, :]
        U = tl.load(u + ((b * I + i) * A + a) * K + k, mask=(b < B) & (k < K), other=0.0)
        G = operand(_gradient(V, row, n, i, B, I, J, A, O), DT, PRECISION)
        total = tl.dot(operand(U, DT, PRECISION), G, total, input_precision=PRECISION)
    j, o = (n // O)[None, :], (n % O)[None, :]
    tl.store(dW + (i * J + j) * (K * O) + k * O + o, total, mask=(j < J) & (k < K))


@kernel("B", "I", "J", "NR")
def votes_gradients(u, W, V, du, dW, B, I, J, NR, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, KP: tl.constexpr,
                    R: tl.constexpr, C: tl.constexpr, DT: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """From the votes' gradient V [b,i,j,a,o]: that by one child, R rows (b, a), in the first NR programs of each child;
    in the others that by its transforms, C columns (j, o)."""
    in_turn()
    i, part = tl.program_id(0), tl.program_id(1)
    if part < NR:
        _by_children(W, V, du, part * R + tl.arange(0, R), i, B, I, J, A, K, O, KP, R, C, DT, PRECISION)
    else:
        _by_transforms(u, V, dW, (part - NR) * C + tl.arange(0, C), i, B, I, J, A, K, O, KP, R, C, DT, PRECISION)


def made_votes(run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype) -> Tensor:
    """Votes [b,i,j,a,o]."""
    V = u.new_empty((s.b, s.i, s.j, s.a, s.o), dtype=dtype)
    run(make_votes, plan.votes, u, W, V, s.b, s.i, s.j)
    return V


def by_votes(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, V: Tensor, s: Sizes
) -> tuple[Tensor, Tensor]:
    """Gradients by children and transforms, from that by votes."""
    du, dW = torch.empty_like(u), torch.empty_like(W)
    run(votes_gradients, plan.gradients, u, W, V, du, dW, s.b, s.i, s.j, plan.gradients.tiles)
    return du, dW


def resident_forward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, results: tuple,
    how: Schedule, prior: Prior,
) -> None:  # fmt: skip
    """Poses, last coefficients, sums and queries, from children and transforms."""
    V = made_votes(run, plan, u, W, s, dtype)
    numbers = (s.b, s.i, s.j, how.lower, how.upper, how.first, how.factor, prior.stride)
    flags = {"NORM": how.norm, "STORE": how.coefficients, "T": how.iterations, "SOFTMAX": how.softmax}
    run(resident_loop, plan.loop, V, *results, prior.given, *numbers, **flags)


def resident_backward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, g: Tensor,
    g_c: Tensor | None, saved: tuple[Tensor, Tensor], how: Schedule, prior: Prior,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Gradients by children and transforms. Votes are made again: a second backward pass finds everything as it was."""
    V, terms = made_votes(run, plan, u, W, s, dtype), g.new_empty((how.iterations - 1, *g.shape), dtype=torch.float32)
    given, strides = (g, (0, 0, 0)) if g_c is None else (g_c, g_c.stride())
    numbers = (s.b, s.i, s.j, int(g_c is not None), how.lower, how.upper, how.first, how.factor, prior.stride, *strides)
    flags = {"NORM": how.norm, "T": how.iterations, "SOFTMAX": how.softmax, "STOP": how.stop_gradient}
    run(resident_loop_backward, plan.loop, V, g, given, *saved, terms, prior.given, prior.gradient, *numbers, **flags)
    del terms  # before the gradients are allocated
    prior.add_up()
    return by_votes(run, plan, u, W, V, s)
