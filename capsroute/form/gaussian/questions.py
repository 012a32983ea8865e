"""Densities and moments of stored votes [b,i,j,f], asked for one at a time; a program holds a tile of the parents.

What `resident` does not hold: parents that compete in another way, or too many of them.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.resident import add_children, blamed, leave_share, places, vote_tile
from capsroute.form.launch import kernel

__all__ = ["density", "density_gradients", "weigh", "weights_gradients"]


@triton.jit
def _gaussian(mean, variance, b, j, f, J, F: tl.constexpr):
    """Rows of parents: mean and variance, one beyond the pose."""
    inside = (j < J) & (f < F)
    at = b * (J * F) + j * F + f
    return tl.load(mean + at, mask=inside, other=0.0), tl.load(variance + at, mask=inside, other=1.0)


@kernel("b0", "I", "J", "NCH")
def density(votes, mean, variance, out, b0, I, J, NCH, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
            JT: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """Log-densities [b,i,j]."""
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(2) * JT
    centre, spread = _gaussian(mean, variance, b, j, f, J, F)
    square = tl.div_rn(-0.5, spread)
    constant = -0.5 * tl.sum(tl.log(spread), axis=2, keep_dims=True)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, tl.program_id(2), I, J, F, FP, IC, JT)
        V = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP))
        d = V - centre
        found = tl.sum(tl.fma(square * d, d, 0.0), axis=2, keep_dims=True) + constant
        tl.store(out + (b * I + i) * J + j, found, mask=(i < I) & (j < J))


@kernel("b0", "B", "I", "J", "NCH", "g_b", "g_i", "g_j")
def density_gradients(votes, mean, variance, slope, rows, few, b0, B, I, J, NCH, g_b, g_i, g_j, F: tl.constexpr,
                      FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """Votes become their gradients, from that of the densities; shares of the sums over children that parents need.

    rows [split, b, (pull, pull d), j, f], few [split, b, j]: pull is the slope of the log-density by the vote.
    """
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(2) * JT
    inside = (j < J) & (f < F)
    centre, spread = _gaussian(mean, variance, b, j, f, J, F)
    twice = tl.div_rn(-1.0, spread)
    total = tl.zeros((1, JT, 1), tl.float32)
    first = tl.zeros((1, JT, FP), tl.float32)
    second = tl.zeros((1, JT, FP), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, tl.program_id(2), I, J, F, FP, IC, JT)
        d = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP)) - centre
        y = tl.load(slope + b * g_b + i * g_i + j * g_j, mask=(i < I) & (j < J), other=0.0)
        pull = twice * d * y
        total += tl.sum(y, axis=0, keep_dims=True)
        first += tl.sum(pull, axis=0, keep_dims=True)
        second += tl.sum(pull * d, axis=0, keep_dims=True)
        tl.store(at, tl.reshape(pull, (IC, JT * FP)), mask=mask)
    at = (split * B + b) * J
    tl.store(few + at + j, total, mask=j < J)
    to = rows + at * (2 * F) + j * F + f
    tl.store(to, first, mask=inside)
    tl.store(to + J * F, second, mask=inside)


@kernel("b0", "B", "I", "J", "NCH", "w_b", "w_i", "w_j")
def weigh(votes, weights, beta, rows, few, b0, B, I, J, NCH, w_b, w_i, w_j, F: tl.constexpr, FP: tl.constexpr,
          IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, BETA: tl.constexpr):  # fmt: skip
    """Shares of the moments with weights [b,i,j] of any strides, and of the sum of weights * beta [i,j] (BETA)."""
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(2) * JT
    weight = tl.zeros((1, JT, 1), tl.float32)
    benefit = tl.zeros((1, JT, 1), tl.float32)
    mean = tl.zeros((1, JT, FP), tl.float32)
    rest = tl.zeros((1, JT, FP), tl.float32)
    square = tl.zeros((1, JT, FP), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, tl.program_id(2), I, J, F, FP, IC, JT)
        V = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP))
        x = tl.load(weights + b * w_b + i * w_i + j * w_j, mask=(i < I) & (j < J), other=0.0)
        if BETA:
            gained = x * tl.load(beta + i * J + j, mask=(i < I) & (j < J), other=0.0)
            benefit += tl.sum(gained, axis=0, keep_dims=True)
        weight, mean, rest, square = add_children(V, x, weight, mean, rest, square)
    leave_share(rows, few, split * B + b, j, f, J, weight, benefit, mean, rest, square, F)


@kernel("b0", "B", "I", "J", "NCH", "w_b", "w_i", "w_j")
def weights_gradients(votes, weights, beta, statistics, table, table_few, by_weights, b0, B, I, J, NCH, w_b, w_i, w_j,
                      F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr,
                      BETA: tl.constexpr):  # fmt: skip
    """Votes become their gradients, from what `blame` has left; and by_weights [b,i,j]."""
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(2) * JT
    mean, square, linear, constant, by_dots = blamed(statistics, table, table_few, b, j, f, B, J, 0, F)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        there = (i < I) & (j < J)
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, tl.program_id(2), I, J, F, FP, IC, JT)
        d = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP)) - mean
        x = tl.load(weights + b * w_b + i * w_i + j * w_j, mask=there, other=0.0)
        by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
        if BETA:
            by_x += by_dots * tl.load(beta + i * J + j, mask=there, other=0.0)
        tl.store(by_weights + (b * I + i) * J + j, by_x, mask=there)
        tl.store(at, tl.reshape(x * (linear + 2 * square * d), (IC, JT * FP)), mask=mask)
