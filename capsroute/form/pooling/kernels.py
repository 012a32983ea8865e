"""Routing pooling (Zhao & Huang 2019) as two kernels: children are their own votes, softmax over children, one parent.

A program holds a sample: its children stay in the cache while they are walked over once for the mean and once an
iteration, with a softmax that is kept up as it goes. Backward makes logits again from the sums that were kept.
Children that lie in memory in another order are copied: a compiler spreads a sum over threads as its operand lies, so
that other strides would give other bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel

LOWEST = tl.constexpr(-3e38)


@triton.jit
def children(u, b, i, d, I, D):
    """A tile of children [IC, DP] and one over their lengths [IC, 1], one for a child of length zero."""
    U = tl.load(u + (b * I + i) * D + d, mask=(i < I) & (d < D), other=0.0).to(tl.float32)
    square = tl.sum(U * U, axis=1, keep_dims=True)
    return U, tl.div_rn(1.0, tl.sqrt_rn(tl.where(square == 0, 1.0, square)))


@triton.jit
def length(s):
    """|s| [1, 1], one for zero; squares of s over its largest entry neither overflow nor vanish."""
    largest = tl.max(tl.abs(s), axis=1, keep_dims=True)
    scale = tl.where(largest == 0, 1.0, largest)
    scaled = tl.div_rn(s, scale)
    square = tl.sum(scaled * scaled, axis=1, keep_dims=True)
    return tl.sqrt_rn(tl.where(largest == 0, 1.0, square)) * scale


@triton.jit
def add_tile(tops, totals, some, x, U, real):
    """A softmax that is kept up, in each row for itself: largest logit and total [IC, 1], weighted sum [IC, DP]."""
    x = tl.where(real, x, LOWEST)
    higher = tl.maximum(tops, x)
    p = tl.where(real, tl.exp(x - higher), 0.0)
    shrink = tl.exp(tops - higher)
    return higher, totals * shrink + p, some * shrink + p * U


@kernel("B", "I", "NT", "sharpness")
def pool(u, poses, c, sums, logs, B, I, NT, sharpness, D: tl.constexpr, DP: tl.constexpr, IC: tl.constexpr,
         R: tl.constexpr):  # fmt: skip
    """A program for each sample.

    Poses [b,d] and coefficients [b,i]; the sums [r,b,d] before each iteration, the softmax's logarithms [r,b].
    """
    in_turn()
    b = tl.program_id(0)
    d = tl.arange(0, DP)[None, :]
    some = tl.zeros((IC, DP), tl.float32)
    for tile in range(NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        some += children(u, b, i, d, I, D)[0]
    s = tl.sum(some, axis=0, keep_dims=True) / I
    q = tl.zeros((1, DP), tl.float32)
    for t in tl.static_range(R):
        tl.store(sums + (t * B + b) * D + d, s, mask=d < D)
        q += tl.div_rn(s, length(s))
        # Every row of a tile keeps a softmax of its own: warps meet once an iteration, not once a tile.
        tops = tl.full((IC, 1), LOWEST, tl.float32)
        totals = tl.zeros((IC, 1), tl.float32)
        some = tl.zeros((IC, DP), tl.float32)
        for tile in range(NT):
            i = tile * IC + tl.arange(0, IC)[:, None]
            U, inverse = children(u, b, i, d, I, D)
            x = sharpness * tl.sum(U * q, axis=1, keep_dims=True) * inverse
            if t == R - 1:
                tl.store(c + b * I + i, x, mask=i < I)
            tops, totals, some = add_tile(tops, totals, some, x, U, i < I)
        top = tl.max(tops, axis=0, keep_dims=True)
        share = tl.exp(tops - top)
        total = tl.sum(totals * share, axis=0, keep_dims=True)
        s = tl.div_rn(tl.sum(some * share, axis=0, keep_dims=True), total)
        log = top + tl.log(total)
        tl.store(logs + t * B + b + tl.zeros((1, 1), tl.int32), log)
    tl.store(poses + b * D + d, s, mask=d < D)
    tl.debug_barrier()
    for tile in range(NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        tl.store(c + b * I + i, tl.exp(tl.load(c + b * I + i, mask=i < I, other=0.0) - log), mask=i < I)


@triton.jit
def slopes(U, inverse, q, gs, log, known, g_c, b, i, I, sharpness, GIVEN):
    """Of one iteration: coefficients, the gradient of the logits, and dot products with the query [IC, 1]."""
    dot = tl.sum(U * q, axis=1, keep_dims=True) * inverse
    c = tl.where(i < I, tl.exp(sharpness * dot - log), 0.0)
    g = tl.sum(U * gs, axis=1, keep_dims=True)
    if GIVEN:
        g += tl.load(g_c + b * I + i, mask=i < I, other=0.0)
    return c, sharpness * c * (g - known), dot


@kernel("B", "I", "NT", "sharpness")
def pool_backward(u, g, g_c, c, poses, sums, logs, du, B, I, NT, sharpness, D: tl.constexpr, DP: tl.constexpr,
                  IC: tl.constexpr, R: tl.constexpr, GIVEN: tl.constexpr):  # fmt: skip
    """A program for each sample: du [b,i,d] from the gradients of poses and (GIVEN) of coefficients."""
    in_turn()
    b = tl.program_id(0)
    d = tl.arange(0, DP)[None, :]
    one = tl.zeros((1, 1), tl.int32)
    S = ()
    Q = ()
    L = ()
    q = tl.zeros((1, DP), tl.float32)
    for t in tl.static_range(R):
        s = tl.load(sums + (t * B + b) * D + d, mask=d < D, other=0.0)
        q += tl.div_rn(s, length(s))
        S = S + (s,)
        Q = Q + (q,)
        L = L + (tl.load(logs + t * B + b + one),)
    S = S + (tl.load(poses + b * D + d, mask=d < D, other=0.0),)
    extra = tl.zeros((1, 1), tl.float32)
    if GIVEN:
        for tile in range(NT):
            i = tile * IC + tl.arange(0, IC)[:, None]
            both = tl.load(c + b * I + i, mask=i < I, other=0.0) * tl.load(g_c + b * I + i, mask=i < I, other=0.0)
            extra += tl.sum(both, axis=0, keep_dims=True)
    gs = tl.load(g + b * D + d, mask=d < D, other=0.0)
    gq = tl.zeros((1, DP), tl.float32)
    GS = ()
    KNOWN = ()
    for r in tl.static_range(R):
        known = tl.sum(S[R - r] * gs, axis=1, keep_dims=True)
        if r == 0:
            known += extra
        some = tl.zeros((IC, DP), tl.float32)
        for tile in range(NT):
            i = tile * IC + tl.arange(0, IC)[:, None]
            U, inverse = children(u, b, i, d, I, D)
            _, slope, _ = slopes(U, inverse, Q[R - 1 - r], gs, L[R - 1 - r], known, g_c, b, i, I, sharpness,
                                 GIVEN and r == 0)  # fmt: skip
            some += slope * inverse * U
        gq += tl.sum(some, axis=0, keep_dims=True)
        GS = GS + (gs,)
        KNOWN = KNOWN + (known,)
        # Back through s / |s|; zero stays zero with slope one.
        long = length(S[R - 1 - r])
        y = tl.div_rn(S[R - 1 - r], long)
        gs = tl.div_rn(gq - y * tl.sum(y * gq, axis=1, keep_dims=True), long)
    for tile in range(NT):
        i = tile * IC + tl.arange(0, IC)[:, None]
        U, inverse = children(u, b, i, d, I, D)
        total = tl.zeros((IC, DP), tl.float32) + gs / I
        for r in tl.static_range(R):
            cs, slope, dot = slopes(U, inverse, Q[R - 1 - r], GS[r], L[R - 1 - r], KNOWN[r], g_c, b, i, I, sharpness,
                                    GIVEN and r == 0)  # fmt: skip
            total += cs * GS[r] + slope * inverse * (Q[R - 1 - r] - dot * inverse * U)
        tl.store(du + (b * I + i) * D + d, total, mask=(i < I) & (d < D))
