"""EM and Heinsen routing over stored votes [b,i,j,f]: one kernel over the votes an iteration, and a small one.

A program holds all parents of a sample and a share of its children, IC of them at a time in a tile [IC, JT, FP]. It
finds the moments of a tile about the tile's own mean and joins them to those before, so that no square is a difference
of larger ones. A small kernel puts the programs' shares together, and says what parents then are (`believe`):

    rows [split, b, (mean, rest, square), j, f]               few [split, b, (weight, benefit), j]
    statistics [t, b, (mean, variance, rest), j, f]           brief [t, b, (weight, logit, constant), j]

Rests are weights times distances from the mean, zero but for the mean's rounding; the constant is what a log-density
has beside its square. The way back needs a pass for each iteration's gradient by parents, and one for that of the
votes. Between them a small kernel (`blame`) says what the gradient by the weights of an iteration is, a quadratic of
d = vote - mean:

    table [t, b, (square, linear), j, f]                      table_few [t, b, (constant, benefit, cost), j]

where benefit and cost are the gradients of what parameters are made of.
"""

import triton
import triton.language as tl

from capsroute.form.exponential import exponential
from capsroute.form.gaussian.plain import TINY
from capsroute.form.launch import kernel

LOWEST = tl.constexpr(-3e38)  # a log-density that does not overflow
NONE = tl.constexpr(TINY)

__all__ = [
    "add_children", "believe", "beta_sums", "blame", "blamed", "cost_sums", "last_gradients", "leave_share", "places",
    "route", "slopes", "vote_tile",
]  # fmt: skip


@triton.jit
def places(JT: tl.constexpr, IC: tl.constexpr, FP: tl.constexpr):
    """Parents, children and numbers of a pose in a tile."""
    j, n, f = tl.arange(0, JT), tl.arange(0, IC), tl.arange(0, FP)
    return j[None, :, None], n[:, None, None], f[None, None, :]


@triton.jit
def vote_tile(votes, row, first, tile, I, J, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
              JT: tl.constexpr):  # fmt: skip
    """Where the votes of IC children to a tile of parents lie, and which are there: [IC, JT * FP].

    Parents and poses as one axis: lanes then take those, and a thread holds the same of every child.
    """
    i, c = first + tl.arange(0, IC)[:, None], tl.arange(0, JT * FP)[None, :]
    if F == FP:
        at = tile * (JT * FP) + c
        mask = at < J * F
    else:
        at = (tile * JT + c // FP) * F + c % FP
        mask = (tile * JT + c // FP < J) & (c % FP < F)
    return votes + (row * I + i).to(tl.int64) * (J * F) + at, mask & (i < I)


@triton.jit
def _inverse(weight):
    """One over a sum of weights, zero for next to none: a mean need not be exact where its rest is kept."""
    return tl.where(weight < NONE, 0.0, 1.0 / tl.maximum(weight, NONE))


@triton.jit
def _joined(weight, mean, rest, square, w, m, r, q):
    """Moments of two groups of children, each about its own mean, as those of one."""
    whole = weight + w
    # From the first mean, so that a mean which both share stays as it is.
    new = tl.where(weight == 0, m, mean + (rest + r + w * (m - mean)) * _inverse(whole))
    d, e = mean - new, m - new
    # About the mean as it is rounded: squares are then exact, whatever the rounding.
    square += d * (2 * rest + weight * d) + q + e * (2 * r + w * e)
    return whole, new, rest + weight * d + r + w * e, square


@triton.jit
def add_children(V, x, weight, mean, rest, square):
    """Moments with the children of a tile [IC,JT,FP] added, whose weights are x [IC,JT,1].

    Products are rounded before they are summed, weights too where they are products: one that is fused into a sum over
    lanes is rounded for all lanes but its own. Each lane would then have a mean of its own.
    """
    w = tl.sum(x, axis=0, keep_dims=True)
    m = tl.sum(tl.fma(x, V, 0.0), axis=0, keep_dims=True) * _inverse(w)
    # Again from there: where one child has all the weight, its distance from the mean is zero, not a rounding of both.
    m += tl.sum(tl.fma(x, V - m, 0.0), axis=0, keep_dims=True) * _inverse(w)
    d = V - m
    own = tl.fma(x, d, 0.0)
    r = tl.sum(own, axis=0, keep_dims=True)
    return _joined(weight, mean, rest, square, w, m, r, tl.sum(tl.fma(own, d, 0.0), axis=0, keep_dims=True))


@triton.jit
def leave_share(rows, few, at, j, f, J, weight, benefit, mean, rest, square, F: tl.constexpr):
    """A program's share of the moments."""
    tl.store(few + at * (2 * J) + j, weight, mask=j < J)
    tl.store(few + at * (2 * J) + J + j, benefit, mask=j < J)
    to = rows + at * (3 * J * F) + j * F + f
    inside = (j < J) & (f < F)
    tl.store(to, mean, mask=inside)
    tl.store(to + J * F, rest, mask=inside)
    tl.store(to + 2 * J * F, square, mask=inside)


@triton.jit
def _spread(variance, inside, eps, HEINSEN: tl.constexpr):
    """The variance that densities have, and the sum of its logarithms."""
    if HEINSEN:
        spread = variance + eps
    else:
        spread = tl.maximum(variance, eps)
    spread = tl.where(inside, spread, 1.0)
    return spread, tl.sum(tl.log(spread), axis=2, keep_dims=True)


@triton.jit
def _cost(use, volume, j, J, F: tl.constexpr):
    """What a unit of weight costs in EM."""
    return F * tl.load(use + j, mask=j < J, other=0.0) + 0.5 * volume


@kernel("b0", "B", "J", "S", "t", "rate", "eps")
def believe(use, act, scale, rows, few, statistics, brief, means, spreads, logits, b0, B, J, S, t, rate, eps,
            F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, HEINSEN: tl.constexpr,
            SCALE: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """What parents are after iteration t, from S shares; a program holds a few of them."""
    b = b0 + tl.program_id(0)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(1) * JT
    inside = (j < J) & (f < F)
    weight = tl.zeros((1, JT, 1), tl.float32)
    benefit = tl.zeros((1, JT, 1), tl.float32)
    moment = tl.zeros((1, JT, FP), tl.float32)
    for begin in range(0, S, IC):
        s = begin + n
        at = few + (s * B + b) * (2 * J) + j
        w = tl.load(at, mask=(s < S) & (j < J), other=0.0)
        weight += tl.sum(w, axis=0, keep_dims=True)
        benefit += tl.sum(tl.load(at + J, mask=(s < S) & (j < J), other=0.0), axis=0, keep_dims=True)
        to = rows + (s * B + b) * (3 * J * F) + j * F + f
        m = tl.load(to, mask=(s < S) & inside, other=0.0)
        r = tl.load(to + J * F, mask=(s < S) & inside, other=0.0)
        moment += tl.sum(tl.fma(w, m, r), axis=0, keep_dims=True)
    if HEINSEN:
        divisor = weight + eps
    else:
        divisor = weight
    divisor = tl.where(divisor < NONE, 1.0, divisor)
    # With eps the divisor is not quite the total weight, so the mean is not quite the centre of mass. It is taken
    # twice, the second time from the first: where variances are tight every rounding of it shows in the densities.
    mean = tl.div_rn(moment, divisor)
    off = (weight - divisor) * mean
    for begin in range(0, S, IC):
        s = begin + n
        w = tl.load(few + (s * B + b) * (2 * J) + j, mask=(s < S) & (j < J), other=0.0)
        to = rows + (s * B + b) * (3 * J * F) + j * F + f
        m = tl.load(to, mask=(s < S) & inside, other=0.0)
        r = tl.load(to + J * F, mask=(s < S) & inside, other=0.0)
        off += tl.sum(tl.fma(w, m - mean, r), axis=0, keep_dims=True)
    mean += tl.div_rn(off, divisor)
    square = tl.zeros((1, JT, FP), tl.float32)
    rest = tl.zeros((1, JT, FP), tl.float32)
    for begin in range(0, S, IC):
        s = begin + n
        w = tl.load(few + (s * B + b) * (2 * J) + j, mask=(s < S) & (j < J), other=0.0)
        to = rows + (s * B + b) * (3 * J * F) + j * F + f
        d = tl.load(to, mask=(s < S) & inside, other=0.0) - mean
        r = tl.load(to + J * F, mask=(s < S) & inside, other=0.0)
        own = tl.fma(w, d, r)
        q = tl.load(to + 2 * J * F, mask=(s < S) & inside, other=0.0)
        rest += tl.sum(own, axis=0, keep_dims=True)
        square += tl.sum(tl.fma(d, r + own, q), axis=0, keep_dims=True)
    variance = tl.div_rn(square, divisor)
    spread, volume = _spread(variance, inside, eps, HEINSEN)
    if HEINSEN:
        logit = benefit
        if SCALE:
            logit *= tl.load(scale + b)
    else:
        logit = rate * (tl.load(act + j, mask=j < J, other=0.0) - _cost(use, volume, j, J, F) * weight)
    to = statistics + (t * B + b) * (3 * J * F) + j * F + f
    tl.store(to, mean, mask=inside)
    tl.store(to + J * F, variance, mask=inside)
    tl.store(to + 2 * J * F, rest, mask=inside)
    to = brief + (t * B + b) * (3 * J) + j
    tl.store(to, weight, mask=j < J)
    tl.store(to + J, logit, mask=j < J)
    # log of the logistic function of the logit
    prior = tl.minimum(logit, 0.0) - tl.log(1 + tl.exp(-tl.abs(logit)))
    tl.store(to + 2 * J, prior - 0.5 * volume, mask=j < J)
    if LAST:
        at = b * (J * F) + j * F + f
        tl.store(means + at, mean, mask=inside)
        tl.store(spreads + at, spread, mask=inside)
        tl.store(logits + b * J + j, logit, mask=j < J)


@kernel("b0", "B", "I", "J", "NCH", "t", "eps", "b_i")
def route(votes, gate, use, other, statistics, brief, R, rows, few, b0, B, I, J, NCH, t, eps, b_i, F: tl.constexpr,
          FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, HEINSEN: tl.constexpr,
          FIRST: tl.constexpr):  # fmt: skip
    """Iteration t: shares R[b,i,j] of what parents were after the last one, equal ones at FIRST; then their moments."""
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    valid = j < J
    if not FIRST:
        centre, twice = _density_of(statistics, b, j, f, B, J, t - 1, eps, F, HEINSEN)
        precision = 0.5 * twice
        constant = tl.load(brief + ((t - 1) * B + b) * (3 * J) + 2 * J + j, mask=valid, other=-float("inf"))
    weight = tl.zeros((1, JT, 1), tl.float32)
    benefit = tl.zeros((1, JT, 1), tl.float32)
    mean = tl.zeros((1, JT, FP), tl.float32)
    rest = tl.zeros((1, JT, FP), tl.float32)
    square = tl.zeros((1, JT, FP), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, 0, I, J, F, FP, IC, JT)
        V = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP))
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        if FIRST:
            x = tl.where(valid, g / J, 0.0)
        else:
            d = V - centre
            density = tl.sum(tl.fma(precision * d, d, 0.0), axis=2, keep_dims=True) + constant
            # A child so far from all parents that no density is left belongs to all alike, as after any other tie.
            density = tl.where(valid & (density < LOWEST), LOWEST, density)
            share = exponential(density - tl.max(density, axis=1, keep_dims=True))
            share = tl.div_rn(share, tl.sum(share, axis=1, keep_dims=True))
            tl.store(R + (b * I + i) * J + j, share, mask=(i < I) & valid)
            x = tl.fma(g, share, 0.0)
        if HEINSEN:
            pays = tl.load(use + i * b_i + j, mask=(i < I) & valid, other=0.0)
            costs = tl.load(other + i * b_i + j, mask=(i < I) & valid, other=0.0)
            benefit += tl.sum(x * pays - (g - x) * costs, axis=0, keep_dims=True)
        weight, mean, rest, square = add_children(V, x, weight, mean, rest, square)
    leave_share(rows, few, split * B + b, j, f, J, weight, benefit, mean, rest, square, F)


@triton.jit
def _density_of(statistics, b, j, f, B, J, t, eps, F: tl.constexpr, HEINSEN: tl.constexpr):
    """Mean and -1 / spread of iteration t: twice the square of its log-density."""
    inside = (j < J) & (f < F)
    at = statistics + (t * B + b) * (3 * J * F) + j * F + f
    mean = tl.load(at, mask=inside, other=0.0)
    spread, _ = _spread(tl.load(at + J * F, mask=inside, other=1.0), inside, eps, HEINSEN)
    return mean, tl.div_rn(-1.0, spread)


@kernel("b0", "B", "J", "S", "t", "rate", "eps")
def blame(statistics, brief, use, scale, g_mean, g_spread, g_logit, g_total, rows, few, table, table_few, b0, B, J, S,
          t, rate, eps, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, HEINSEN: tl.constexpr,
          SCALE: tl.constexpr, LAST: tl.constexpr, MEAN: tl.constexpr, SPREAD: tl.constexpr, LOGIT: tl.constexpr,
          TOTAL: tl.constexpr):  # fmt: skip
    """The gradient by weights of iteration t; a program holds a few parents.

    It comes from those of the outputs (LAST), or from S shares of rows [split, b, (pull, pull d), j, f] and few
    [split, b, j] of the pass over the iteration behind it.
    """
    b = b0 + tl.program_id(0)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(1) * JT
    inside = (j < J) & (f < F)
    at = statistics + (t * B + b) * (3 * J * F) + j * F + f
    variance = tl.load(at + J * F, mask=inside, other=0.0)
    rest = tl.load(at + 2 * J * F, mask=inside, other=0.0)
    weight = tl.load(brief + (t * B + b) * (3 * J) + j, mask=j < J, other=0.0)
    logit = tl.load(brief + (t * B + b) * (3 * J) + J + j, mask=j < J, other=0.0)
    spread, volume = _spread(variance, inside, eps, HEINSEN)
    by_mean = tl.zeros((1, JT, FP), tl.float32)
    by_spread = tl.zeros((1, JT, FP), tl.float32)
    by_logit = tl.zeros((1, JT, 1), tl.float32)
    if LAST:
        at = b * (J * F) + j * F + f
        if MEAN:
            by_mean += tl.load(g_mean + at, mask=inside, other=0.0)
        if SPREAD:
            by_spread += tl.load(g_spread + at, mask=inside, other=0.0)
        if LOGIT:
            by_logit += tl.load(g_logit + b * J + j, mask=j < J, other=0.0)
    else:
        for begin in range(0, S, IC):
            s = begin + n
            slope = tl.load(few + (s * B + b) * J + j, mask=(s < S) & (j < J), other=0.0)
            by_logit += tl.sum(slope, axis=0, keep_dims=True)
            to = rows + (s * B + b) * (2 * J * F) + j * F + f
            by_mean -= tl.sum(tl.load(to, mask=(s < S) & inside, other=0.0), axis=0, keep_dims=True)
            by_spread += tl.sum(tl.load(to + J * F, mask=(s < S) & inside, other=0.0), axis=0, keep_dims=True)
        by_spread = tl.div_rn(-0.5, spread) * (by_spread + by_logit)
        by_logit = by_logit / (1 + tl.exp(logit))
    by_weight = tl.zeros((1, JT, 1), tl.float32)
    if HEINSEN:
        by_variance = by_spread
        by_benefit = by_logit
        if SCALE:
            by_benefit *= tl.load(scale + b)
        divisor = weight + eps
        by_cost = by_logit * logit  # of the scale, times it
    else:
        by_benefit = rate * by_logit
        by_weight -= by_benefit * _cost(use, volume, j, J, F)
        by_variance = by_spread + tl.div_rn(-0.5 * by_benefit * weight, spread)
        by_variance = tl.where(variance >= eps, by_variance, 0.0)
        divisor = weight
        by_cost = -by_benefit * weight * F
    if TOTAL:
        by_weight += tl.load(g_total + b * J + j, mask=j < J, other=0.0)
    divisor = tl.where(divisor < NONE, 1.0, divisor)
    square = tl.where(inside, tl.div_rn(by_variance, divisor), 0.0)
    # With eps, and with rounding, the mean is not quite the centre of mass, so the variance has a slope there.
    linear = tl.div_rn(by_mean - 2 * square * rest, divisor)
    constant = by_weight - tl.sum(tl.fma(square, variance, 0.0), axis=2, keep_dims=True)
    to = table + (t * B + b) * (2 * J * F) + j * F + f
    tl.store(to, square, mask=inside)
    tl.store(to + J * F, linear, mask=inside)
    to = table_few + (t * B + b) * (3 * J) + j
    tl.store(to, constant, mask=j < J)
    tl.store(to + J, by_benefit, mask=j < J)
    tl.store(to + 2 * J, by_cost, mask=j < J)


@triton.jit
def blamed(statistics, table, table_few, b, j, f, B, J, t, F: tl.constexpr):
    """What `blame` has left: mean, square, linear, constant and benefit."""
    inside = (j < J) & (f < F)
    mine = (t * B + b) * (J * F)
    mean = tl.load(statistics + 3 * mine + j * F + f, mask=inside, other=0.0)
    square = tl.load(table + 2 * mine + j * F + f, mask=inside, other=0.0)
    linear = tl.load(table + 2 * mine + J * F + j * F + f, mask=inside, other=0.0)
    few = table_few + (t * B + b) * (3 * J) + j
    return (
        mean, square, linear, tl.load(few, mask=j < J, other=0.0), tl.load(few + J, mask=j < J, other=0.0)
    )  # fmt: skip


@triton.jit
def _by_gate(gate_gradient, at, total, other, i, j, I, J, b_i, by_benefit, before, HEINSEN: tl.constexpr):
    """Gradients by gates [IC,1,1] are added to those that passes before this have left, of so many children."""
    if HEINSEN:
        costs = tl.load(other + i * b_i + j, mask=(i < I) & (j < J), other=0.0)
        total -= costs * by_benefit
    found = tl.sum(tl.where(j < J, total, 0.0), axis=1, keep_dims=True)
    found += tl.load(gate_gradient + at, mask=i < before, other=0.0)
    tl.store(gate_gradient + at, found, mask=i < I)


@kernel("b0", "B", "I", "J", "NCH", "t", "eps", "b_i", "r_b", "r_i", "r_j")
def slopes(votes, gate, use, other, statistics, table, table_few, R, g_R, rows, few, slope, gate_gradient, b0, B, I, J,
           NCH, t, eps, b_i, r_b, r_i, r_j, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
           NS: tl.constexpr, HEINSEN: tl.constexpr, LAST: tl.constexpr, SHARES: tl.constexpr):  # fmt: skip
    """Back through iteration t > 0: slope[b,i,j] of the log-density, and shares of the gradients by parents before it.

    rows [split, b, (pull, pull d), j, f] and few [split, b, j]: pull is the slope of the log-density by the vote.
    """
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    valid = j < J
    inside = valid & (f < F)
    mean, square, linear, constant, by_benefit = blamed(statistics, table, table_few, b, j, f, B, J, t, F)
    centre, twice = _density_of(statistics, b, j, f, B, J, t - 1, eps, F, HEINSEN)
    total = tl.zeros((1, JT, 1), tl.float32)
    first = tl.zeros((1, JT, FP), tl.float32)
    second = tl.zeros((1, JT, FP), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        there = (i < I) & valid
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, 0, I, J, F, FP, IC, JT)
        V = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP))
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        share = tl.load(R + (b * I + i) * J + j, mask=there, other=0.0)
        d = V - mean
        by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
        if HEINSEN:
            pays = tl.load(use + i * b_i + j, mask=there, other=0.0)
            by_x += by_benefit * (pays + tl.load(other + i * b_i + j, mask=there, other=0.0))
        by_x = tl.minimum(tl.maximum(by_x, LOWEST), -LOWEST)  # times shares that are next to nothing it is finite
        _by_gate(gate_gradient, b * I + i, share * by_x, other, i, j, I, J, b_i, by_benefit, 0 if LAST else I, HEINSEN)
        # Rounded before it is subtracted from itself: where one parent has all of a child the difference is zero.
        by_share = tl.fma(g, by_x, 0.0)
        if SHARES:
            by_share += tl.load(g_R + b * r_b + i * r_i + j * r_j, mask=there, other=0.0)
        by_share -= tl.sum(tl.fma(share, by_share, 0.0), axis=1, keep_dims=True)
        y = share * by_share
        tl.store(slope + (b * I + i) * J + j, y, mask=there)
        d = V - centre
        pull = twice * d * y
        total += tl.sum(y, axis=0, keep_dims=True)
        first += tl.sum(pull, axis=0, keep_dims=True)
        second += tl.sum(pull * d, axis=0, keep_dims=True)
    at = (split * B + b) * J
    tl.store(few + at + j, total, mask=valid)
    to = rows + at * (2 * F) + j * F + f
    tl.store(to, first, mask=inside)
    tl.store(to + J * F, second, mask=inside)


@kernel("b0", "B", "I", "J", "NCH", "eps", "b_i")
def last_gradients(votes, gate, use, other, statistics, table, table_few, R, slope, gate_gradient, b0, B, I, J, NCH,
                   eps, b_i, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr,
                   T: tl.constexpr, HEINSEN: tl.constexpr):  # fmt: skip
    """Back through the first iteration; then votes become their gradients, through all T of them.

    R and slope [T - 1, b, i, j]: those of iterations 1 and on. A program holds a tile of the parents; gate_gradient
    [tile, b, i].
    """
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    valid = j < J
    mean, square, linear, constant, by_benefit = blamed(statistics, table, table_few, b, j, f, B, J, 0, F)
    means = (mean,)
    squares = (2 * square,)
    linears = (linear,)
    twices = ()
    for t in tl.static_range(1, T):
        _, twice = _density_of(statistics, b, j, f, B, J, t - 1, eps, F, HEINSEN)
        mean_t, square_t, linear_t, _, _ = blamed(statistics, table, table_few, b, j, f, B, J, t, F)
        twices = twices + (twice,)
        means = means + (mean_t,)
        squares = squares + (2 * square_t,)
        linears = linears + (linear_t,)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        there = (i < I) & valid
        at, mask = vote_tile(votes, b - b0, (split * NCH + chunk) * IC, tile, I, J, F, FP, IC, JT)
        V = tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP))
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        plane = (b * I + i) * J + j
        total = tl.zeros((IC, JT, FP), tl.float32)
        for t in tl.static_range(T):
            d = V - means[t]
            if t == 0:
                x = g / J
                by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
                if HEINSEN:
                    pays = tl.load(use + i * b_i + j, mask=there, other=0.0)
                    by_x += by_benefit * (pays + tl.load(other + i * b_i + j, mask=there, other=0.0))
                before = tl.where(tile == 0, I, 0) if T > 1 else 0
                _by_gate(gate_gradient, (tile * B + b) * I + i, by_x / J, other, i, j, I, J, b_i, by_benefit, before,
                         HEINSEN)  # fmt: skip
            else:
                x = g * tl.load(R + ((t - 1) * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
            slant = x * squares[t]
            if t + 1 < T:
                y = tl.load(slope + (t * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
                slant += y * twices[t]
            total += tl.fma(slant, d, x * linears[t])
        tl.store(at, tl.reshape(total, (IC, JT * FP)), mask=mask)


@kernel("B", "I", "J")
def beta_sums(R, gate, table_few, by_use, by_ignore, B, I, J, T: tl.constexpr, IC: tl.constexpr,
              JT: tl.constexpr):  # fmt: skip
    """Sums over samples and iterations of gate R g and -gate (1 - R) g [i,j]; g the gradients of benefits."""
    i = tl.program_id(0) * IC + tl.arange(0, IC)[:, None]
    j = tl.program_id(1) * JT + tl.arange(0, JT)[None, :]
    inside = (i < I) & (j < J)
    used = tl.zeros((IC, JT), tl.float32)
    ignored = tl.zeros((IC, JT), tl.float32)
    for b in range(B):
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        for t in tl.static_range(T):
            if t == 0:
                share = tl.zeros((IC, JT), tl.float32) + 1.0 / J
            else:
                share = tl.load(R + (((t - 1) * B + b) * I + i).to(tl.int64) * J + j, mask=inside, other=0.0)
            gradient = g * tl.load(table_few + (t * B + b) * (3 * J) + J + j, mask=j < J, other=0.0)
            used += share * gradient
            ignored -= (1 - share) * gradient
    tl.store(by_use + i * J + j, used, mask=inside)
    tl.store(by_ignore + i * J + j, ignored, mask=inside)


@kernel("N", "J")
def cost_sums(table_few, by_benefit, by_cost, N, J, BT: tl.constexpr, JT: tl.constexpr):
    """Sums over samples and iterations, N in all, of the gradients that parameters of EM need [j]."""
    j = tl.program_id(0) * JT + tl.arange(0, JT)[None, :]
    first = tl.zeros((1, JT), tl.float32)
    second = tl.zeros((1, JT), tl.float32)
    for begin in range(0, N, BT):
        n = begin + tl.arange(0, BT)[:, None]
        at, mask = table_few + n * (3 * J) + J + j, (n < N) & (j < J)
        first += tl.sum(tl.load(at, mask=mask, other=0.0), axis=0, keep_dims=True)
        second += tl.sum(tl.load(at + J, mask=mask, other=0.0), axis=0, keep_dims=True)
    tl.store(by_benefit + j, first, mask=j < J)
    tl.store(by_cost + j, second, mask=j < J)
