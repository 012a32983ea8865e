"""Routing pooling of many children of few samples: children are split over programs, and an iteration is one launch.

A program leaves a softmax of its own children: the largest logit, the total, the weighted sum. The next launch puts
those of a sample together, every program for itself. The first launch, of the mean, has logits that are all zero.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import Launch, in_turn, kernel, kind_of
from capsroute.form.pooling.kernels import LOWEST, add_tile, children, length, slopes
from capsroute.form.tiles import there


@triton.jit
def _together(heads, parts, t, b, d, B, S, D, DP, SP):
    """Sum [1, DP] and logarithm [1, 1] of round t, from heads [t,b,s,2] (largest, total) and parts [t,b,s,d]."""
    s = tl.arange(0, SP)[:, None]
    at = (t * B + b) * S + s
    tops = tl.load(heads + at * 2, mask=s < S, other=LOWEST)
    totals = tl.load(heads + at * 2 + 1, mask=s < S, other=0.0)
    some = tl.load(parts + at * D + d, mask=(s < S) & (d < D), other=0.0)
    top = tl.max(tops, axis=0, keep_dims=True)
    share = tl.exp(tops - top)
    total = tl.sum(totals * share, axis=0, keep_dims=True)
    return tl.div_rn(tl.sum(some * share, axis=0, keep_dims=True), total), top + tl.log(total)


@triton.jit
def _query(sums, b, d, B, D, DP, T):
    """Directions of the first T sums, added up: [1, DP]."""
    q = tl.zeros((1, DP), tl.float32)
    for t in tl.static_range(T):
        s = tl.load(sums + (t * B + b) * D + d, mask=d < D, other=0.0)
        q += tl.div_rn(s, length(s))
    return q


@kernel("B", "I", "NT", "S", "sharpness")
def pool_round(u, heads, parts, sums, logs, c, B, I, NT, S, sharpness, T: tl.constexpr, LAST: tl.constexpr,
               D: tl.constexpr, DP: tl.constexpr, IC: tl.constexpr, SP: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Round T for NT tiles of a sample's children: 0 is the mean; before others the last round is put together.

    sums[T-1] is what it came to, logs[T-2] its logarithm; the last round leaves its logits in c [b,i].
    """
    in_turn()
    b, split = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, DP)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    q = tl.zeros((1, DP), tl.float32)
    if T > 0:
        s, log = _together(heads, parts, T - 1, b, d, B, S, D, DP, SP)
        tl.store(sums + ((T - 1) * B + b) * D + d, s, mask=(d < D) & there(split, 1))
        if T > 1:
            tl.store(logs + (T - 2) * B + b + one, log, mask=there(split, 1))
        q = _query(sums, b, d, B, D, DP, T - 1) + tl.div_rn(s, length(s))
    tops = tl.full((IC, 1), LOWEST, tl.float32)
    totals = tl.zeros((IC, 1), tl.float32)
    some = tl.zeros((IC, DP), tl.float32)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        U, inverse = children(u, b, i, d, I, D)
        if T == 0:
            totals += tl.where(i < I, 1.0, 0.0)
            some += U
        else:
            x = sharpness * tl.sum(U * q, axis=1, keep_dims=True) * inverse
            if LAST:
                tl.store(c + b * I + i, x, mask=i < I)
            tops, totals, some = add_tile(tops, totals, some, x, U, i < I)
    if T == 0:
        tops = tl.zeros((IC, 1), tl.float32)
    top = tl.max(tops, axis=0, keep_dims=True)
    share = tl.exp(tops - top)
    at = (T * B + b) * S + split
    tl.store(heads + at * 2 + one, top)
    tl.store(heads + at * 2 + 1 + one, tl.sum(totals * share, axis=0, keep_dims=True))
    tl.store(parts + at * D + d, tl.sum(some * share, axis=0, keep_dims=True), mask=d < D)


@kernel("B", "I", "NT", "S")
def pool_end(heads, parts, poses, logs, c, B, I, NT, S, D: tl.constexpr, DP: tl.constexpr, IC: tl.constexpr,
             SP: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Poses [b,d], the last logarithm, and coefficients c [b,i] in the place of the logits."""
    in_turn()
    b, split = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, DP)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    s, log = _together(heads, parts, R, b, d, B, S, D, DP, SP)
    tl.store(poses + b * D + d, s, mask=(d < D) & there(split, 1))
    tl.store(logs + (R - 1) * B + b + one, log, mask=there(split, 1))
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        tl.store(c + b * I + i, tl.exp(tl.load(c + b * I + i, mask=i < I, other=0.0) - log), mask=i < I)


@triton.jit
def _gradient(g, parts, poses, sums, r, b, d, B, S, D, DP, SP, R):
    """The gradient of the sum that r rounds of the way back reach [1, DP], and its product with that sum [1, 1]."""
    if r == 0:
        gs = tl.load(g + b * D + d, mask=d < D, other=0.0).to(tl.float32)
        total = tl.load(poses + b * D + d, mask=d < D, other=0.0)
    else:
        gq = tl.zeros((1, DP), tl.float32)
        s = tl.arange(0, SP)[:, None]
        for t in tl.static_range(r):
            at = (t * B + b) * S + s
            gq += tl.sum(tl.load(parts + at * D + d, mask=(s < S) & (d < D), other=0.0), axis=0, keep_dims=True)
        total = tl.load(sums + ((R - r) * B + b) * D + d, mask=d < D, other=0.0)
        long = length(total)
        y = tl.div_rn(total, long)  # back through s / |s|; zero stays zero with slope one
        gs = tl.div_rn(gq - y * tl.sum(y * gq, axis=1, keep_dims=True), long)
    return gs, tl.sum(total * gs, axis=1, keep_dims=True)


@kernel("B", "I", "NT", "S", "sharpness")
def pool_round_backward(u, g, g_c, extra, parts, poses, sums, logs, B, I, NT, S, sharpness, T: tl.constexpr,
                        GIVEN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, IC: tl.constexpr, SP: tl.constexpr,
                        R: tl.constexpr):  # fmt: skip
    """parts[T,b,s,d] = a program's share of the query's gradient in iteration R - 1 - T; extra [b] is sum_i c g_c."""
    in_turn()
    b, split = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, DP)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    q = _query(sums, b, d, B, D, DP, R - T)
    gs, known = _gradient(g, parts, poses, sums, T, b, d, B, S, D, DP, SP, R)
    if GIVEN and T == 0:
        known += tl.load(extra + b + one)
    log = tl.load(logs + (R - 1 - T) * B + b + one)
    some = tl.zeros((IC, DP), tl.float32)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        U, inverse = children(u, b, i, d, I, D)
        _, slope, _ = slopes(U, inverse, q, gs, log, known, g_c, b, i, I, sharpness, GIVEN and T == 0)
        some += slope * inverse * U
    tl.store(parts + ((T * B + b) * S + split) * D + d, tl.sum(some, axis=0, keep_dims=True), mask=d < D)


@kernel("B", "I", "NT", "S", "sharpness")
def pool_end_backward(u, g, g_c, extra, parts, poses, sums, logs, du, B, I, NT, S, sharpness, GIVEN: tl.constexpr,
                      D: tl.constexpr, DP: tl.constexpr, IC: tl.constexpr, SP: tl.constexpr,
                      R: tl.constexpr):  # fmt: skip
    """du [b,i,d], over all iterations and the mean."""
    in_turn()
    b, split = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, DP)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    Q = ()
    GS = ()
    KNOWN = ()
    L = ()
    for r in tl.static_range(R):
        gs, known = _gradient(g, parts, poses, sums, r, b, d, B, S, D, DP, SP, R)
        if GIVEN and r == 0:
            known += tl.load(extra + b + one)
        Q = Q + (_query(sums, b, d, B, D, DP, R - r),)
        GS = GS + (gs,)
        KNOWN = KNOWN + (known,)
        L = L + (tl.load(logs + (R - 1 - r) * B + b + one),)
    mean, _ = _gradient(g, parts, poses, sums, R, b, d, B, S, D, DP, SP, R)
    for tile in range(split * NT, (split + 1) * NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        U, inverse = children(u, b, i, d, I, D)
        total = tl.zeros((IC, DP), tl.float32) + mean / I
        for r in tl.static_range(R):
            cs, slope, dot = slopes(U, inverse, Q[r], GS[r], L[r], KNOWN[r], g_c, b, i, I, sharpness, GIVEN and r == 0)
            total += cs * GS[r] + slope * inverse * (Q[r] - dot * inverse * U)
        tl.store(du + (b * I + i) * D + d, total, mask=(i < I) & (d < D))


def split_forward(
    launch: Launch, u: Tensor, iterations: int, sharpness: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `kernels.pooling_forward`, of contiguous u [b,i,a,k]."""
    (b, i, a, k), S, kind = u.shape, launch.splits, kind_of(u)
    poses, c = u.new_empty((b, 1, a, k), dtype=torch.float32), u.new_empty((b, i, 1), dtype=torch.float32)
    sums, logs = poses.new_empty((iterations, b, a * k)), poses.new_empty((iterations, b))
    heads, parts = poses.new_empty((iterations + 1, b, S, 2)), poses.new_empty((iterations + 1, b, S, a * k))
    for t in range(iterations + 1):
        numbers, last = (b, i, launch.tiles, S, sharpness), t == iterations
        pool_round(launch, kind, u, heads, parts, sums, logs, c, *numbers, T=t, LAST=last)
    pool_end(launch, kind, heads, parts, poses, logs, c, b, i, launch.tiles, S)
    return poses, c, sums, logs


def split_backward(
    launch: Launch, u: Tensor, g: Tensor, g_c: Tensor | None, kept: tuple[Tensor, ...], iterations: int,
    sharpness: float,
) -> Tensor:  # fmt: skip
    """As `kernels.pooling_backward`."""
    (b, i), (poses, c, sums, logs), S = u.shape[:2], kept, launch.splits
    by_c, extra = (c, c) if g_c is None else (g_c, (c * g_c).sum(1))
    parts, du = sums.new_empty((iterations, b, S, sums.shape[2])), torch.empty_like(u)
    kind, numbers = kind_of(u, g, by_c, poses, sums, logs), (b, i, launch.tiles, S, sharpness)
    read = (u, g, by_c, extra, parts, poses, sums, logs)
    for t in range(iterations):
        pool_round_backward(launch, kind, *read, *numbers, T=t, GIVEN=g_c is not None)
    pool_end_backward(launch, kind, *read, du, *numbers, GIVEN=g_c is not None)
    return du
