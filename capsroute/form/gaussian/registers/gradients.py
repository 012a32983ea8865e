"""Gradients of Gaussian passes by children, shared transforms, biases and parents; votes are made again in registers.

The gradient of a vote is a sum of at most two terms, one for each way in which it was used (d = vote - centre):

    in moments     weights[b,i,j] * (linear[b,j,f] + 2 square[b,j,f] d)
    in a density   slope[b,i,j] * 2 square[b,j,f] d                                        STEP
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.registers.kernels import over_children, over_parents, places, rows_of, vote, zeros
from capsroute.form.launch import kernel


@triton.jit
def _table(pointers, J, mask, F: tl.constexpr, LINEAR: tl.constexpr):
    """Centre, twice the square and the linear rows (LINEAR) of the table of a quadratic."""
    rows = rows_of(pointers, J, mask, 0, F)
    for f in tl.static_range(F):
        rows = rows + (2 * tl.load(pointers + (F + f) * J, mask=mask, other=0.0),)
    if LINEAR:
        rows = rows + rows_of(pointers, J, mask, 2 * F + 1, F)
    return rows


@triton.jit
def _fetch(u, plane, gate, slope, b, i, j, I, J, p_b, p_i, p_j, AK: tl.constexpr, STEP: tl.constexpr):
    """What is read of children: their poses, then their weights and, of a step, their slopes."""
    inside = j < tl.where(i < I, J, 0)
    rows = rows_of(u + (b * I + i) * AK, 1, i < I, 0, AK)
    x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
    if STEP:
        x *= tl.load(gate + b * I + i, mask=i < I, other=0.0)
        return rows + (x, tl.load(slope + (b * I + i) * J + j, mask=inside, other=0.0))
    else:
        return rows + (x,)


@kernel("B", "I", "J", "NCH")
def vote_gradients(u, W, bias, weighed, dense, plane, gate, slope, du, dW, sums, B, I, J, NCH, p_b, p_i, p_j,
                   A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                   BIAS: tl.constexpr, BETA: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """A program holds a tile of a sample's parents and walks over children; `weighed` and `dense` are the tables of the
    quadratics. STEP: weights are gate * plane, and votes were asked for their density before.

    It writes du[tile, b, i, a*k]; it keeps dW[split, b, (k*o, then a*o of the bias), j] and, of a density, the sums
    over children sums[split, b, (slope, pull, pull * d), j], pull = 2 square d, the slope of a log-density by the vote:
    d^2 alone would overflow in sums of vast votes.
    """
    b, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    N: tl.constexpr = K * O + (F if BIAS else 0)
    ROWS: tl.constexpr = 3 * F + 1 + (1 if BETA else 0)
    M: tl.constexpr = 1 + 2 * F if STEP else 0
    i, j = places(split * NCH * IC, tile, IC, JT)
    valid = j < J
    Wt = rows_of(W + j, J, valid, 0, K * O)
    bs = rows_of(bias + j, J, valid, 0, F if BIAS else 1)
    first = _table(weighed + b * (ROWS * J) + j, J, valid, F, True)
    if STEP:
        second = _table(dense + b * ((2 * F + 1) * J) + j, J, valid, F, False)
    acc = zeros(N + M, IC, JT)
    U = _fetch(u, plane, gate, slope, b, i, j, I, J, p_b, p_i, p_j, A * K, STEP)
    for chunk in range(NCH):
        i, _ = places((split * NCH + chunk) * IC, tile, IC, JT)
        if STEP:  # with so much to do for each, the next ones are read meanwhile; it does not pay for less
            after = _fetch(u, plane, gate, slope, b, i + IC, j, I, J, p_b, p_i, p_j, A * K, STEP)
        else:
            U = _fetch(u, plane, gate, slope, b, i, j, I, J, p_b, p_i, p_j, A * K, STEP)
        to = du + ((tile * B + b) * I + i) * (A * K)
        grads = ()
        s1 = ()
        s2 = ()
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                v = vote(U, Wt, bs, a, o, K, O, BIAS)
                g = U[A * K] * (first[2 * F + a * O + o] + first[F + a * O + o] * (v - first[a * O + o]))
                if STEP:
                    d = v - second[a * O + o]
                    pull = second[F + a * O + o] * d * U[A * K + 1]
                    g += pull
                    s1 = s1 + (acc[N + 1 + a * O + o] + over_children(pull, IC),)
                    s2 = s2 + (acc[N + 1 + F + a * O + o] + over_children(pull * d, IC),)
                grads = grads + (g,)
            for k in tl.static_range(K):
                back = grads[a * O] * Wt[k * O]
                for o in tl.static_range(1, O):
                    back += grads[a * O + o] * Wt[k * O + o]
                tl.store(to + a * K + k, over_parents(back, IC), mask=i < I)
        new = ()
        for k in tl.static_range(K):
            for o in tl.static_range(O):
                total = U[k] * grads[o]
                for a in tl.static_range(1, A):
                    total += U[a * K + k] * grads[a * O + o]
                new = new + (acc[k * O + o] + over_children(total, IC),)
        if BIAS:
            for f in tl.static_range(F):
                new = new + (acc[K * O + f] + over_children(grads[f], IC),)
        if STEP:
            new = new + (acc[N] + over_children(U[A * K + 1], IC),) + s1 + s2
            U = after
        acc = new
    to = dW + (split * B + b) * (N * J) + j
    for n in tl.static_range(N):
        tl.store(to + n * J, acc[n], mask=valid)
    to = sums + (split * B + b) * (M * J) + j
    for n in tl.static_range(M):
        tl.store(to + n * J, acc[N + n], mask=valid)
