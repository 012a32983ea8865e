"""Dynamic and max-min routing of small layers: votes are made once, and a whole loop over them is one kernel.

A program holds a sample: sums and queries of all parents in registers, and its votes [i, j, f], f = (a, o), in the
cache, which it walks over once an iteration. What is left behind is what the passes of `calls` leave, so either can go
back; this derivative makes the votes again, and leaves the planes that `contractions.gradients` reads.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import Launch, LaunchSequence, kernel
from capsroute.form.lengths import squashed, squashed_gradient
from capsroute.form.loop.shared import normalised, slopes
from capsroute.form.plan import Sizes, cdiv, power_of_2
from capsroute.form.tiles import there

__all__ = ["ResidentPlan", "resident_backward", "resident_forward", "resident_plan"]

TILE = 1 << 13  # numbers of votes that a program holds at once: [i, j, f]
MOST = 1 << 12  # of which a child has at most so many


@kernel("B", "I", "J")
def make_votes(u, W, V, B, I, J, A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, R: tl.constexpr,
               C: tl.constexpr):  # fmt: skip
    """V [b,i,j,a,o] of one child, R rows (b, a) and C columns (j, o)."""
    i = tl.program_id(0)
    row, n = tl.program_id(1) * R + tl.arange(0, R)[:, None], tl.program_id(2) * C + tl.arange(0, C)[None, :]
    b, a, j, o = row // A, row % A, n // O, n % O
    child, transform = (b * I + i) * (A * K) + a * K, (i * J + j) * (K * O) + o
    total = tl.zeros((R, C), tl.float32)
    for k in range(K):
        U = tl.load(u + child + k, mask=b < B, other=0.0).to(tl.float32)
        total += U * tl.load(W + transform + k * O, mask=j < J, other=0.0).to(tl.float32)
    tl.store(V + ((b * I + i) * J + j) * (A * O) + a * O + o, total, mask=(b < B) & (j < J))


@triton.jit
def _votes(V, b, i0, I, J, F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr, FP: tl.constexpr):
    """A tile of a sample's votes [IC, JP, FP]."""
    i, j = i0 + tl.arange(0, IC)[:, None, None], tl.arange(0, JP)[None, :, None]
    f = tl.arange(0, FP)[None, None, :]
    return tl.load(V + ((b * I + i) * J + j) * F + f, mask=(i < I) & (j < J) & (f < F), other=0.0).to(tl.float32)


@kernel("B", "I", "J", "keep", "lower", "upper", "first")
def resident_loop(V, poses, c, earlier, sums, queries, B, I, J, keep, lower, upper, first, T: tl.constexpr,
                  SOFTMAX: tl.constexpr, F: tl.constexpr, IC: tl.constexpr, JP: tl.constexpr,
                  FP: tl.constexpr):  # fmt: skip
    """Poses [b,j,f]; sums and queries [t,b,j,f]; the last coefficients c [i,j,b], and earlier ones if `keep`."""
    b = tl.program_id(0)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    at, mask = (b * J + j) * F + f, (j < J) & (f < F)
    q = tl.zeros((JP, FP), tl.float32)
    for t in range(T):
        some = tl.zeros((IC, JP, FP), tl.float32)
        if t == 0:
            for i0 in range(0, I, IC):
                some += _votes(V, b, i0, I, J, F, IC, JP, FP)
            some *= first
        else:
            for i0 in range(0, I, IC):
                v = _votes(V, b, i0, I, J, F, IC, JP, FP)
                C = normalised(tl.sum(v * q[None, :, :], axis=2), J, SOFTMAX, lower, upper, JP)
                i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
                to, here = (i * J + jj) * B + b, (i < I) & (jj < J)
                tl.store(c + to, C, mask=here & there(T - 2, t))
                tl.store(earlier + (t - 1) * (I * J * B) + to, C, mask=here & there(t, T - 1) & there(0, keep))
                some += C[:, :, None] * v
        s = tl.sum(some, axis=0)
        tl.store(sums + t * (B * J * F) + at, s, mask=mask)
        v = squashed(s)
        q += v
        if t == T - 1:
            tl.store(poses + at, v, mask=mask)
        else:
            tl.store(queries + t * (B * J * F) + at, q, mask=mask)


@kernel("B", "I", "J", "given", "lower", "upper", "first", "gc_b", "gc_i", "gc_j")
def resident_loop_backward(V, g, g_c, sums, x, earlier, logits, B, I, J, given, lower, upper, first, gc_b, gc_i, gc_j,
                           T: tl.constexpr, SOFTMAX: tl.constexpr, F: tl.constexpr, IC: tl.constexpr,
                           JP: tl.constexpr, FP: tl.constexpr):  # fmt: skip
    """Gradients x [t,b,j,f] of the sums (the first iteration's last, times `first`) and [t,i,j,b] of the logits.

    Max-min leaves its earlier coefficients too.
    """
    b = tl.program_id(0)
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    at, mask = (b * J + j) * F + f, (j < J) & (f < F)
    gv = tl.load(g + at, mask=mask, other=0.0)
    by_queries = tl.zeros((JP, FP), tl.float32)
    for n in range(T - 1):
        t = T - 1 - n
        gs = squashed_gradient(tl.load(sums + t * (B * J * F) + at, mask=mask, other=0.0), gv)
        tl.store(x + (t - 1) * (B * J * F) + at, gs, mask=mask)
        q = tl.zeros((JP, FP), tl.float32)
        for r in range(t):
            q += squashed(tl.load(sums + r * (B * J * F) + at, mask=mask, other=0.0))
        some = tl.zeros((IC, JP, FP), tl.float32)
        for i0 in range(0, I, IC):
            v = _votes(V, b, i0, I, J, F, IC, JP, FP)
            i, jj = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
            to, here = (i * J + jj) * B + b, (i < I) & (jj < J)
            agreed = tl.sum(v * q[None, :, :], axis=2)
            C = normalised(agreed, J, SOFTMAX, lower, upper, JP)
            gc = tl.load(g_c + b * gc_b + i * gc_i + jj * gc_j, mask=here & there(n, given), other=0.0)
            slope = slopes(agreed, C, gc + tl.sum(v * gs[None, :, :], axis=2), J, SOFTMAX, lower, upper, JP)
            tl.store(logits + (t - 1) * (I * J * B) + to, slope, mask=here)
            if not SOFTMAX:
                tl.store(earlier + (t - 1) * (I * J * B) + to, C, mask=here & there(0, n))
            some += slope[:, :, None] * v
        by_queries += tl.sum(some, axis=0)
        gv = by_queries
    gs = squashed_gradient(tl.load(sums + at, mask=mask, other=0.0), gv) * first
    tl.store(x + (T - 1) * (B * J * F) + at, gs, mask=mask)


class ResidentPlan(NamedTuple):
    """The launches that make votes and walk over them."""

    votes: Launch
    loop: Launch


@functools.lru_cache(maxsize=256)
def resident_plan(s: Sizes) -> ResidentPlan | None:
    """None where a program does not hold all parents, or where the passes are faster (`cost.holds_votes`)."""
    from capsroute.form.cost import holds_votes

    pose = {"F": s.a * s.o, "JP": power_of_2(s.j), "FP": power_of_2(s.a * s.o)}
    each = pose["JP"] * pose["FP"]
    if each > MOST or s.b * s.i * s.j * s.a * s.o >= 1 << 31 or not holds_votes(s):
        return None
    tile = min(max(1, TILE // each), power_of_2(s.i))
    loop = Launch((s.b, 1, 1), 1, 1, {**pose, "IC": tile, "num_warps": max(1, min(8, tile * each // 512))})
    rows, columns = min(16, power_of_2(s.b * s.a)), min(256, power_of_2(s.j * s.o))
    options = {"A": s.a, "K": s.k, "O": s.o, "R": rows, "C": columns, "num_warps": max(1, rows * columns // 1024)}
    grid = (s.i, cdiv(s.b * s.a, rows), cdiv(s.j * s.o, columns))
    return ResidentPlan(Launch(grid, 1, 1, options), loop)


def _made(run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype) -> Tensor:
    V = u.new_empty((s.b, s.i, s.j, s.a, s.o), dtype=dtype)
    run(make_votes, plan.votes, u, W, V, s.b, s.i, s.j)
    return V


def resident_forward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, results: tuple,
    keep: bool, how,
) -> None:  # fmt: skip
    """Poses, last coefficients, earlier ones, sums and queries, from children and transforms."""
    V = _made(run, plan, u, W, s, dtype)
    numbers = (s.b, s.i, s.j, int(keep), how.lower, how.upper, how.first)
    run(resident_loop, plan.loop, V, *results, *numbers, T=how.iterations, SOFTMAX=how.softmax)


def resident_backward(
    run: LaunchSequence, plan: ResidentPlan, u: Tensor, W: Tensor, s: Sizes, dtype: torch.dtype, g: Tensor,
    g_c: Tensor | None, sums: Tensor, results: tuple, how,
) -> None:  # fmt: skip
    """Gradients of the sums, earlier coefficients (of max-min) and gradients of the logits."""
    V = _made(run, plan, u, W, s, dtype)
    given, strides = (g, (0, 0, 0)) if g_c is None else (g_c, g_c.stride())
    numbers = (s.b, s.i, s.j, int(g_c is not None), how.lower, how.upper, how.first, *strides)
    flags = {"T": how.iterations, "SOFTMAX": how.softmax}
    run(resident_loop_backward, plan.loop, V, g, given, sums, *results, *numbers, **flags)
