"""Gradients of Gaussian passes by children, transforms and biases; votes are made again in registers.

The gradient of a vote is a sum of at most two terms, one for each way in which it was used (d = vote - centre):

    in moments     gate[b,i] * plane[b,i,j] * (linear[b,j,f] + twice_square[b,j,f] d)          WEIGHED
    in a density   slope[b,i,j] * twice_square[b,j,f] d                                        DENSITY
"""

import triton.language as tl

from capsroute.form.kernels.gaussian import rows_of, vote
from capsroute.form.kernels.launch import kernel

__all__ = ["beta_gradient", "vote_gradients"]


@kernel("B", "I", "J", "NCH")
def vote_gradients(u, W, bias, weighed, dense, plane, gate, slope, du, dW, B, I, J, NCH, p_b, p_i, p_j, s_b, s_i, s_j,
                   A: tl.constexpr, K: tl.constexpr, O: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                   SHARED: tl.constexpr, BIAS: tl.constexpr, WEIGHED: tl.constexpr, GATE: tl.constexpr,
                   DENSITY: tl.constexpr):  # fmt: skip
    """With shared transforms a program holds a sample and walks over children, else it holds a child and walks samples.

    weighed [b, (centre, twice_square, linear), j], dense [b, (centre, twice_square), j]. It leaves du[tile, b, i, a*k]
    and dW[held, split, (k*o, then a*o of the bias), j].
    """
    held, split, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    F: tl.constexpr = A * O
    NB: tl.constexpr = F if BIAS else 0
    j = tile * JT + tl.arange(0, JT)[None, :]
    valid = j < J
    if SHARED:
        walked, child = I, 0
    else:
        walked, child = B, held
    Wt = rows_of(W + child * (K * O * J) + j, J, valid, 0, K * O)
    bs = rows_of(bias + child * (F * J) + j, J, valid, 0, F if BIAS else 1)
    acc = ()
    for _ in tl.static_range(K * O + NB):
        acc = acc + (tl.zeros((1, JT), tl.float32),)
    if SHARED and WEIGHED:
        first = rows_of(weighed + held * (3 * F * J) + j, J, valid, 0, 3 * F)
    if SHARED and DENSITY:
        second = rows_of(dense + held * (2 * F * J) + j, J, valid, 0, 2 * F)
    for chunk in range(NCH):
        n = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        there = n < walked
        inside = there & valid
        if SHARED:
            b, i = held, n
        else:
            b, i = n, held
            if WEIGHED:
                first = rows_of(weighed + b * (3 * F * J) + j, J, inside, 0, 3 * F)
            if DENSITY:
                second = rows_of(dense + b * (2 * F * J) + j, J, inside, 0, 2 * F)
        U = rows_of(u + (b * I + i) * (A * K), 1, there, 0, A * K)
        if WEIGHED:
            x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
            if GATE:
                x *= tl.load(gate + b * I + i, mask=there, other=0.0)
        if DENSITY:
            y = tl.load(slope + b * s_b + i * s_i + j * s_j, mask=inside, other=0.0)
        to = du + ((tile * B + b) * I + i) * (A * K)
        grads = ()
        for a in tl.static_range(A):
            for o in tl.static_range(O):
                v = vote(U, Wt, bs, a, o, K, O, BIAS)
                g = tl.zeros((IC, JT), tl.float32)
                if WEIGHED:
                    g += x * (first[2 * F + a * O + o] + first[F + a * O + o] * (v - first[a * O + o]))
                if DENSITY:
                    g += y * second[F + a * O + o] * (v - second[a * O + o])
                grads = grads + (g,)
            for k in tl.static_range(K):
                back = grads[a * O] * Wt[k * O]
                for o in tl.static_range(1, O):
                    back += grads[a * O + o] * Wt[k * O + o]
                tl.store(to + a * K + k, tl.sum(back, axis=1, keep_dims=True), mask=there)
        new = ()
        for k in tl.static_range(K):
            for o in tl.static_range(O):
                total = U[k] * grads[o]
                for a in tl.static_range(1, A):
                    total += U[a * K + k] * grads[a * O + o]
                new = new + (acc[k * O + o] + tl.sum(total, axis=0, keep_dims=True),)
        for f in tl.static_range(NB):
            new = new + (acc[K * O + f] + tl.sum(grads[f], axis=0, keep_dims=True),)
        acc = new
    to = dW + (held * tl.num_programs(1) + split) * ((K * O + NB) * J) + j
    for n in tl.static_range(K * O + NB):
        tl.store(to + n * J, acc[n], mask=valid)


@kernel("B", "I", "J")
def beta_gradient(plane, gate, dots, out, B, I, J, p_b, p_i, p_j, GATE: tl.constexpr, IC: tl.constexpr,
                  JT: tl.constexpr):  # fmt: skip
    """out[i,j] = sum over samples of gate[b,i] plane[b,i,j] dots[b,j]."""
    i = tl.program_id(0) * IC + tl.arange(0, IC)[:, None]
    j = tl.program_id(1) * JT + tl.arange(0, JT)[None, :]
    inside = (i < I) & (j < J)
    total = tl.zeros((IC, JT), tl.float32)
    for b in range(B):
        x = tl.load(plane + b * p_b + i * p_i + j * p_j, mask=inside, other=0.0)
        if GATE:
            x *= tl.load(gate + b * I + i, mask=i < I, other=0.0)
        total += x * tl.load(dots + b * J + j, mask=j < J, other=0.0)
    tl.store(out + i * J + j, total, mask=inside)
