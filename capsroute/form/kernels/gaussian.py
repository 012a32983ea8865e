"""Gaussian passes over votes (Heinsen, EM) that make every vote in registers: nothing is cancelled, nothing stored.

A program is one warp; lanes hold parents, and it walks over children, whose poses are the same for all lanes. A vote of
a 4x4 child costs 64 multiplications, less than reading it from memory would. With d = vote - centre, and f = (a,o):

    quadratic    [b,i,j] = constant[b,j] + sum over f of (linear d + square d^2)     log-density, gradients by weights
    power sums   [b,j,f] = sum over i of plane[b,i,j] * (1, d, d^2)                  moments, gradients by parents

What parents bring lies with parents last, [b, rows, j]; transforms too, [i or 1, k*o, j].
"""

import triton
import triton.language as tl

from capsroute.form.kernels.launch import kernel

__all__ = ["power_sums", "quadratic", "rows_of", "vote"]


@triton.jit
def rows_of(pointers, stride, mask, FIRST: tl.constexpr, N: tl.constexpr):
    """Rows FIRST .. FIRST + N of a table, each a tile of numbers."""
    rows = ()
    for n in tl.static_range(N):
        rows = rows + (tl.load(pointers + (FIRST + n) * stride, mask=mask, other=0.0).to(tl.float32),)
    return rows


@triton.jit
def vote(U, Wt, bias, a: tl.constexpr, o: tl.constexpr, K: tl.constexpr, O: tl.constexpr, BIAS: tl.constexpr):
    """Entry (a, o) of the votes of a tile."""
    v = U[a * K] * Wt[o]
    if BIAS:
        v += bias[a * O + o]
    for k in tl.static_range(1, K):
        v += U[a * K + k] * Wt[k * O + o]
    return v


@kernel("I", "J", "NCH")
def quadratic(u, W, bias, parents, plane, gate, beta, given, out, out_gate, I, J, NCH, g_b, g_i, g_j, A: tl.constexpr,
              K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, SHARED: tl.constexpr,
              BIAS: tl.constexpr, LINEAR: tl.constexpr, BETA: tl.constexpr, GIVEN: tl.constexpr, SOFTMAX: tl.constexpr,
              BACKWARD: tl.constexpr):  # fmt: skip
    """Rows of parents: centre, square, constant, then linear (LINEAR) and the gradient of weighted betas (BETA).

    SOFTMAX: what is stored is the softmax over parents. BACKWARD: plane holds that softmax R; the quadratic is the
    gradient of weights gate * R, `given` that of R itself, and what is stored is the gradient before the softmax.
    """
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    ROWS: tl.constexpr = 2 * F + 1 + (F if LINEAR else 0) + (1 if BETA else 0)
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    table = parents + b * (ROWS * J) + j
    centre = rows_of(table, J, valid, 0, F)
    square = rows_of(table, J, valid, F, F)
    constant = tl.load(table + 2 * F * J, mask=valid, other=0.0)
    if LINEAR:
        linear = rows_of(table, J, valid, 2 * F + 1, F)
    if BETA:
        dots = tl.load(table + (ROWS - 1) * J, mask=valid, other=0.0)
    if SHARED:
        Wt = rows_of(W + j, J, valid, 0, K * O)
        bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        inside = (i < I) & valid
        U = rows_of(u + (b * I + i) * (A * K), 1, i < I, 0, A * K)
        if not SHARED:
            Wt = rows_of(W + i * (K * O * J) + j, J, inside, 0, K * O)
            bs = rows_of(bias + i * (F * J) + j, J, inside, 0, F if BIAS else 1)
        total = tl.zeros((IC, JT), tl.float32)
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                d = vote(U, Wt, bs, a, o, K, O, BIAS) - centre[a * O + o]
                if LINEAR:
                    total += d * (linear[a * O + o] + square[a * O + o] * d)
                else:
                    total += square[a * O + o] * d * d
        total += constant
        if BETA:
            total += dots * tl.load(beta + i * J + j, mask=inside, other=0.0)
        at = (b * I + i) * J + j
        if SOFTMAX:
            total = tl.where(valid, total, -float("inf"))
            total = tl.exp(total - tl.max(total, axis=1, keep_dims=True))
            total = total / tl.sum(total, axis=1, keep_dims=True)
        if BACKWARD:
            R = tl.load(plane + at, mask=inside, other=0.0)
            tl.store(out_gate + b * I + i, tl.sum(R * total, axis=1, keep_dims=True), mask=i < I)
            total = total * tl.load(gate + b * I + i, mask=i < I, other=0.0)
            if GIVEN:
                total += tl.load(given + b * g_b + i * g_i + j * g_j, mask=inside, other=0.0)
            total = R * (total - tl.sum(R * total, axis=1, keep_dims=True))
        tl.store(out + at, total, mask=inside)


@kernel("B", "I", "J", "NCH")
def power_sums(u, W, bias, plane, gate, beta, centres, part, B, I, J, NCH, p_b, p_i, p_j, A: tl.constexpr,
               K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, SHARED: tl.constexpr,
               BIAS: tl.constexpr, CENTRED: tl.constexpr, GATE: tl.constexpr, BETA: tl.constexpr, FIRST: tl.constexpr,
               SECOND: tl.constexpr):  # fmt: skip
    """One program's share, part[split, b, rows, j]; rows: the sum of weights, of weights * beta (BETA), first, second.

    Weights are plane, times gate[b,i] (GATE). Sums about centres[b,f,j] (CENTRED) or zero.
    """
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    N: tl.constexpr = 2 if BETA else 1
    NF: tl.constexpr = N + (F if FIRST else 0)
    ROWS: tl.constexpr = NF + (F if SECOND else 0)
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    if CENTRED:
        centre = rows_of(centres + b * (F * J) + j, J, valid, 0, F)
    if SHARED:
        Wt = rows_of(W + j, J, valid, 0, K * O)
        bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    sums = ()
    for _ in tl.static_range(ROWS):
        sums = sums + (tl.zeros((1, JT), tl.float32),)
    for chunk in range(NCH):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        inside = (i < I) & valid
        U = rows_of(u + (b * I + i) * (A * K), 1, i < I, 0, A * K)
        if not SHARED:
            Wt = rows_of(W + i * (K * O * J) + j, J, inside, 0, K * O)
            bs = rows_of(bias + i * (F * J) + j, J, inside, 0, F if BIAS else 1)
        x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
        if GATE:
            x *= tl.load(gate + b * I + i, mask=i < I, other=0.0)
        new = (sums[0] + tl.sum(x, axis=0, keep_dims=True),)
        if BETA:
            y = x * tl.load(beta + i * J + j, mask=inside, other=0.0)
            new = new + (sums[1] + tl.sum(y, axis=0, keep_dims=True),)
        second = ()
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                d = vote(U, Wt, bs, a, o, K, O, BIAS)
                if CENTRED:
                    d -= centre[a * O + o]
                if FIRST:
                    new = new + (sums[N + a * O + o] + tl.sum(x * d, axis=0, keep_dims=True),)
                if SECOND:
                    second = second + (sums[NF + a * O + o] + tl.sum(x * d * d, axis=0, keep_dims=True),)
        sums = new + second
    to = part + (split * B + b) * (ROWS * J) + j
    for n in tl.static_range(ROWS):
        tl.store(to + n * J, sums[n], mask=valid)
