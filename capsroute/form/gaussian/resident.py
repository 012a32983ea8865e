"""EM and Heinsen routing over stored votes [b,i,j,f]: one kernel an iteration, with all that parents believe in it.

A program holds a sample and a share of its children, IC of them at a time in a tile [IC, JT, FP]. Each of the IC places
keeps moments of its own, one child after the other, so that no square is a difference of larger ones; they are put
together at the end, and the programs' shares at the start of the next kernel:

    rows [split, b, (mean, rest, square), j, f]      few [split, b, (weight, benefit), j]

Rests are weights times distances from the mean, zero but for the mean's rounding. What a parent then is (`_believe`),
    statistics [t, b, (mean, variance, rest), j, f]      brief [t, b, (weight, logit), j]
is kept for the way back, which needs one pass for each iteration's gradient by parents, and one for that of the votes.
"""

import triton
import triton.language as tl

from capsroute.form.exponential import exponential
from capsroute.form.gaussian.plain import TINY
from capsroute.form.launch import kernel

LOWEST = tl.constexpr(-3e38)  # a log-density that does not overflow
NONE = tl.constexpr(TINY)

__all__ = ["believe", "beta_sums", "last_gradients", "route", "slopes"]


@triton.jit
def _all(x, IC: tl.constexpr):
    """The sum over places."""
    return tl.sum(x, axis=0, keep_dims=True) if IC > 1 else x


@triton.jit
def _merged(weight, mean, rest, square, IC: tl.constexpr):
    """Weight, centre, rest and square of all places, and the moment. Products are rounded before they are summed: one
    that is fused into a sum over lanes is rounded for all lanes but its own, and each would have a mean of its own."""
    whole = _all(weight, IC)
    moment = _all(tl.fma(weight, mean, rest), IC)
    centre = tl.div_rn(moment, tl.where(whole == 0, 1.0, whole))
    d = mean - centre
    own = tl.fma(weight, d, rest)
    return whole, centre, _all(own, IC), _all(tl.fma(d, rest + own, square), IC), moment


@triton.jit
def _believe(rows, few, use, act, scale, b, j, f, n, B, J, S, rate, eps, F: tl.constexpr, FP: tl.constexpr,
             IC: tl.constexpr, JT: tl.constexpr, HEINSEN: tl.constexpr, SCALE: tl.constexpr):  # fmt: skip
    """What parents are, from S shares: weight, mean, variance, rest, spread, sum of its logarithms, and the logit."""
    inside = (j < J) & (f < F)
    weight = tl.zeros((IC, JT, 1), tl.float32)
    benefit = tl.zeros((IC, JT, 1), tl.float32)
    mean = tl.zeros((IC, JT, FP), tl.float32)
    rest = tl.zeros((IC, JT, FP), tl.float32)
    square = tl.zeros((IC, JT, FP), tl.float32)
    for begin in range(0, S, IC):
        s = begin + n
        at = few + (s * B + b) * (2 * J) + j
        w = tl.load(at, mask=(s < S) & (j < J), other=0.0)
        benefit += tl.load(at + J, mask=(s < S) & (j < J), other=0.0)
        to = rows + (s * B + b) * (3 * J * F) + j * F + f
        m = tl.load(to, mask=(s < S) & inside, other=0.0)
        r = tl.load(to + J * F, mask=(s < S) & inside, other=0.0)
        q = tl.load(to + 2 * J * F, mask=(s < S) & inside, other=0.0)
        whole = weight + w
        # From the first mean, so that a mean which both share stays as it is.
        step = tl.div_rn(rest + r + w * (m - mean), tl.where(whole == 0, 1.0, whole))
        new = tl.where(weight == 0, m, mean + step)
        d, e = mean - new, m - new
        square += d * (2 * rest + weight * d) + q + e * (2 * r + w * e)
        rest += weight * d + r + w * e
        mean, weight = new, whole
    weight, centre, rest, square, moment = _merged(weight, mean, rest, square, IC)
    benefit = _all(benefit, IC)
    if HEINSEN:
        divisor = weight + eps
    else:
        divisor = weight
    divisor = tl.where(divisor < NONE, 1.0, divisor)
    # With eps the divisor is not quite the total weight, so the mean is not quite the centre of mass. It is one
    # quotient, rounded once: where variances are tight every rounding of the mean shows in the densities.
    mean = tl.div_rn(moment, divisor)
    d = centre - mean
    variance = tl.div_rn(square + d * (2 * rest + weight * d), divisor)
    rest += weight * d
    spread, volume = _spread(variance, inside, eps, HEINSEN)
    if HEINSEN:
        logit = benefit
        if SCALE:
            logit *= tl.load(scale + b)
    else:
        logit = rate * (tl.load(act + j, mask=j < J, other=0.0) - _cost(use, volume, j, J, F) * weight)
    return weight, mean, variance, rest, spread, volume, logit


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


@triton.jit
def _places(IC: tl.constexpr, JT: tl.constexpr, FP: tl.constexpr):
    n, j, f = tl.arange(0, IC), tl.arange(0, JT), tl.arange(0, FP)
    return n[:, None, None], j[None, :, None], f[None, None, :]


@triton.jit
def _keep(statistics, brief, b, j, f, B, J, t, weight, mean, variance, rest, logit, F: tl.constexpr):
    inside = (j < J) & (f < F)
    to = statistics + (t * B + b) * (3 * J * F) + j * F + f
    tl.store(to, mean, mask=inside)
    tl.store(to + J * F, variance, mask=inside)
    tl.store(to + 2 * J * F, rest, mask=inside)
    to = brief + (t * B + b) * (2 * J) + j
    tl.store(to, weight, mask=j < J)
    tl.store(to + J, logit, mask=j < J)


@kernel("b0", "B", "I", "J", "S", "NCH", "t", "rate", "eps", "b_i")
def route(votes, gate, use, other, scale, rows, few, new_rows, new_few, statistics, brief, R, b0, B, I, J, S, NCH, t,
          rate, eps, b_i, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr,
          HEINSEN: tl.constexpr, SCALE: tl.constexpr, FIRST: tl.constexpr):  # fmt: skip
    """Iteration t: shares R[b,i,j] of what parents were after the last one, equal ones at FIRST; then their moments."""
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    n, j, f = _places(IC, JT, FP)
    valid = j < J
    inside = valid & (f < F)
    if not FIRST:
        total, centre, variance, rest, spread, volume, logit = _believe(
            rows, few, use, other, scale, b, j, f, n, B, J, S, rate, eps, F, FP, IC, JT, HEINSEN, SCALE
        )
        if split == 0:
            _keep(statistics, brief, b, j, f, B, J, t - 1, total, centre, variance, rest, logit, F)
        precision = tl.div_rn(-0.5, spread)
        # log of the logistic function of the logit
        prior = tl.minimum(logit, 0.0) - tl.log(1 + tl.exp(-tl.abs(logit)))
        constant = tl.where(valid, prior - 0.5 * volume, -float("inf"))
    weight = tl.zeros((IC, JT, 1), tl.float32)
    benefit = tl.zeros((IC, JT, 1), tl.float32)
    mean = tl.zeros((IC, JT, FP), tl.float32)
    rest = tl.zeros((IC, JT, FP), tl.float32)
    square = tl.zeros((IC, JT, FP), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        V = tl.load(votes + ((b - b0) * I + i).to(tl.int64) * (J * F) + j * F + f, mask=(i < I) & inside, other=0.0)
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        if FIRST:
            x = tl.where(valid, g / J, 0.0)
        else:
            d = V - centre
            density = tl.sum(tl.fma(precision * d, d, 0.0), axis=2, keep_dims=True) + constant
            # A child so far from all parents that no density is left belongs to all alike, as after any other tie.
            density = tl.where(valid & (density < LOWEST), LOWEST, density)
            share = exponential(density - tl.max(density, axis=1, keep_dims=True))
            share = share / tl.sum(share, axis=1, keep_dims=True)
            tl.store(R + (b * I + i) * J + j, share, mask=(i < I) & valid)
            x = g * share
        if HEINSEN:
            pays = tl.load(use + i * b_i + j, mask=(i < I) & valid, other=0.0)
            costs = tl.load(other + i * b_i + j, mask=(i < I) & valid, other=0.0)
            benefit += x * pays - (g - x) * costs
        whole = weight + x
        step = tl.div_rn(x, tl.where(whole == 0, 1.0, whole))
        e = V - mean
        new = tl.fma(step, e, mean)
        to = V - new
        rest += weight * (mean - new) + x * to
        square += x * e * to
        mean, weight = new, whole
    weight, mean, rest, square, _ = _merged(weight, mean, rest, square, IC)
    benefit = _all(benefit, IC)
    at = (split * B + b) * J
    tl.store(new_few + at * 2 + j, weight, mask=valid)
    tl.store(new_few + at * 2 + J + j, benefit, mask=valid)
    to = new_rows + at * (3 * F) + j * F + f
    tl.store(to, mean, mask=inside)
    tl.store(to + J * F, rest, mask=inside)
    tl.store(to + 2 * J * F, square, mask=inside)


@kernel("b0", "B", "J", "S", "t", "rate", "eps")
def believe(use, other, scale, rows, few, statistics, brief, means, spreads, logits, b0, B, J, S, t, rate, eps,
            F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, HEINSEN: tl.constexpr,
            SCALE: tl.constexpr):  # fmt: skip
    """What parents are after the last iteration."""
    b = b0 + tl.program_id(0)
    n, j, f = _places(IC, JT, FP)
    weight, mean, variance, rest, spread, _, logit = _believe(
        rows, few, use, other, scale, b, j, f, n, B, J, S, rate, eps, F, FP, IC, JT, HEINSEN, SCALE
    )
    _keep(statistics, brief, b, j, f, B, J, t, weight, mean, variance, rest, logit, F)
    inside = (j < J) & (f < F)
    tl.store(means + b * (J * F) + j * F + f, mean, mask=inside)
    tl.store(spreads + b * (J * F) + j * F + f, spread, mask=inside)
    tl.store(logits + b * J + j, logit, mask=j < J)


@triton.jit
def _go_back(statistics, brief, g_mean, g_spread, g_logit, rows, few, use, scale, b, j, f, n, B, J, S, t, rate, eps,
             F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, HEINSEN: tl.constexpr,
             SCALE: tl.constexpr, LAST: tl.constexpr, MEAN: tl.constexpr, SPREAD: tl.constexpr,
             LOGIT: tl.constexpr):  # fmt: skip
    """The gradient by weights of iteration t is a quadratic of d = vote - mean: mean, square, linear, constant; then
    the gradients of the benefit and, for its parameters, of the unit cost and of what the temperature multiplies.

    It comes from those of the outputs (LAST), or from S shares of rows [split, b, (pull, pull d), j, f] and few
    [split, b, j] of the pass over the iteration behind it.
    """
    inside = (j < J) & (f < F)
    at = statistics + (t * B + b) * (3 * J * F) + j * F + f
    mean = tl.load(at, mask=inside, other=0.0)
    variance = tl.load(at + J * F, mask=inside, other=0.0)
    rest = tl.load(at + 2 * J * F, mask=inside, other=0.0)
    weight = tl.load(brief + (t * B + b) * (2 * J) + j, mask=j < J, other=0.0)
    logit = tl.load(brief + (t * B + b) * (2 * J) + J + j, mask=j < J, other=0.0)
    spread, volume = _spread(variance, inside, eps, HEINSEN)
    if LAST:
        by_mean = tl.zeros((1, JT, FP), tl.float32)
        by_spread = tl.zeros((1, JT, FP), tl.float32)
        by_logit = tl.zeros((1, JT, 1), tl.float32)
        if MEAN:
            by_mean += tl.load(g_mean + b * (J * F) + j * F + f, mask=inside, other=0.0)
        if SPREAD:
            by_spread += tl.load(g_spread + b * (J * F) + j * F + f, mask=inside, other=0.0)
        if LOGIT:
            by_logit += tl.load(g_logit + b * J + j, mask=j < J, other=0.0)
    else:
        slope = tl.zeros((IC, JT, 1), tl.float32)
        pull = tl.zeros((IC, JT, FP), tl.float32)
        second = tl.zeros((IC, JT, FP), tl.float32)
        for begin in range(0, S, IC):
            s = begin + n
            slope += tl.load(few + (s * B + b) * J + j, mask=(s < S) & (j < J), other=0.0)
            to = rows + (s * B + b) * (2 * J * F) + j * F + f
            pull += tl.load(to, mask=(s < S) & inside, other=0.0)
            second += tl.load(to + J * F, mask=(s < S) & inside, other=0.0)
        slope = _all(slope, IC)
        by_mean = -_all(pull, IC)
        by_spread = tl.div_rn(-0.5, spread) * (_all(second, IC) + slope)
        by_logit = slope / (1 + tl.exp(logit))
    if HEINSEN:
        by_variance = by_spread
        by_benefit = by_logit
        if SCALE:
            by_benefit *= tl.load(scale + b)
        by_weight = tl.zeros((1, JT, 1), tl.float32)
        divisor = weight + eps
        by_cost = by_logit * logit  # of the scale, times it
    else:
        by_benefit = rate * by_logit
        by_weight = -by_benefit * _cost(use, volume, j, J, F)
        by_variance = by_spread + tl.div_rn(-0.5 * by_benefit * weight, spread)
        by_variance = tl.where(variance >= eps, by_variance, 0.0)
        divisor = weight
        by_cost = -by_benefit * weight * F
    divisor = tl.where(divisor < NONE, 1.0, divisor)
    square = tl.where(inside, tl.div_rn(by_variance, divisor), 0.0)
    # With eps, and with rounding, the mean is not quite the centre of mass, so the variance has a slope there.
    linear = tl.div_rn(by_mean - 2 * square * rest, divisor)
    constant = by_weight - tl.sum(tl.fma(square, variance, 0.0), axis=2, keep_dims=True)
    return mean, square, linear, constant, by_benefit, by_cost


@triton.jit
def _density_of(statistics, b, j, f, B, J, t, eps, F: tl.constexpr, HEINSEN: tl.constexpr):
    """Mean and -1 / spread of iteration t: twice the square of its log-density."""
    inside = (j < J) & (f < F)
    at = statistics + (t * B + b) * (3 * J * F) + j * F + f
    mean = tl.load(at, mask=inside, other=0.0)
    spread, _ = _spread(tl.load(at + J * F, mask=inside, other=1.0), inside, eps, HEINSEN)
    return mean, tl.div_rn(-1.0, spread)


@triton.jit
def _by_gate(gate_gradient, at, mask, total, other, i, j, I, J, b_i, by_benefit, before,
             HEINSEN: tl.constexpr):  # fmt: skip
    """Gradients by gates [IC,1,1] are added to those that passes before this have left, of so many children."""
    if HEINSEN:
        costs = tl.load(other + i * b_i + j, mask=(i < I) & (j < J), other=0.0)
        total -= costs * by_benefit
    found = tl.sum(tl.where(j < J, total, 0.0), axis=1, keep_dims=True)
    found += tl.load(gate_gradient + at, mask=i < before, other=0.0)
    tl.store(gate_gradient + at, found, mask=mask)


@kernel("b0", "B", "I", "J", "S", "NCH", "t", "rate", "eps", "b_i", "r_b", "r_i", "r_j")
def slopes(votes, gate, use, other, scale, statistics, brief, R, g_mean, g_spread, g_logit, g_R, rows, few, new_rows,
           new_few, table, table_few, slope, gate_gradient, b0, B, I, J, S, NCH, t, rate, eps, b_i, r_b, r_i, r_j,
           F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr,
           HEINSEN: tl.constexpr, SCALE: tl.constexpr, LAST: tl.constexpr, MEAN: tl.constexpr, SPREAD: tl.constexpr,
           LOGIT: tl.constexpr, SHARES: tl.constexpr):  # fmt: skip
    """Back through iteration t > 0: slope[b,i,j] of the log-density, and shares of the gradients by parents before it.

    Leaves table[t, b, (square, linear), j, f] and table_few[t, b, (benefit, cost), j] of `_go_back`.
    """
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    n, j, f = _places(IC, JT, FP)
    valid = j < J
    inside = valid & (f < F)
    mean, square, linear, constant, by_benefit, by_cost = _go_back(
        statistics, brief, g_mean, g_spread, g_logit, rows, few, use, scale, b, j, f, n, B, J, S, t, rate, eps, F, FP,
        IC, JT, HEINSEN, SCALE, LAST, MEAN, SPREAD, LOGIT,
    )  # fmt: skip
    if split == 0:
        _keep_table(table, table_few, b, j, f, B, J, t, square, linear, by_benefit, by_cost, F)
    centre, twice = _density_of(statistics, b, j, f, B, J, t - 1, eps, F, HEINSEN)
    total = tl.zeros((IC, JT, 1), tl.float32)
    first = tl.zeros((IC, JT, FP), tl.float32)
    second = tl.zeros((IC, JT, FP), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        there = (i < I) & valid
        V = tl.load(votes + ((b - b0) * I + i).to(tl.int64) * (J * F) + j * F + f, mask=(i < I) & inside, other=0.0)
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        share = tl.load(R + (b * I + i) * J + j, mask=there, other=0.0)
        d = V - mean
        by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
        if HEINSEN:
            pays = tl.load(use + i * b_i + j, mask=there, other=0.0)
            by_x += by_benefit * (pays + tl.load(other + i * b_i + j, mask=there, other=0.0))
        _by_gate(gate_gradient, b * I + i, i < I, share * by_x, other, i, j, I, J, b_i, by_benefit, 0 if LAST else I,
                 HEINSEN)  # fmt: skip
        by_share = g * by_x
        if SHARES:
            by_share += tl.load(g_R + b * r_b + i * r_i + j * r_j, mask=there, other=0.0)
        by_share -= tl.sum(tl.fma(share, by_share, 0.0), axis=1, keep_dims=True)
        y = share * by_share
        tl.store(slope + (b * I + i) * J + j, y, mask=there)
        d = V - centre
        pull = twice * d * y
        total += y
        first += pull
        second += pull * d
    at = (split * B + b) * J
    tl.store(new_few + at + j, _all(total, IC), mask=valid)
    to = new_rows + at * (2 * F) + j * F + f
    tl.store(to, _all(first, IC), mask=inside)
    tl.store(to + J * F, _all(second, IC), mask=inside)


@triton.jit
def _keep_table(table, few, b, j, f, B, J, t, square, linear, by_benefit, by_cost, F: tl.constexpr):
    inside = (j < J) & (f < F)
    to = table + (t * B + b) * (2 * J * F) + j * F + f
    tl.store(to, square, mask=inside)
    tl.store(to + J * F, linear, mask=inside)
    tl.store(few + (t * B + b) * (2 * J) + j, by_benefit, mask=j < J)
    tl.store(few + (t * B + b) * (2 * J) + J + j, by_cost, mask=j < J)


@kernel("b0", "B", "I", "J", "S", "NCH", "rate", "eps", "b_i")
def last_gradients(votes, gate, use, other, scale, statistics, brief, R, g_mean, g_spread, g_logit, rows, few, table,
                   table_few, slope, gate_gradient, b0, B, I, J, S, NCH, rate, eps, b_i, F: tl.constexpr,
                   FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, T: tl.constexpr,
                   HEINSEN: tl.constexpr, SCALE: tl.constexpr, LAST: tl.constexpr, MEAN: tl.constexpr,
                   SPREAD: tl.constexpr, LOGIT: tl.constexpr):  # fmt: skip
    """Back through the first iteration; then votes become their gradients, through all T of them.

    R and slope [T - 1, b, i, j]: those of iterations 1 and on. A program holds a tile of the parents; gate_gradient
    [tile, b, i].
    """
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    n, j, f = _places(IC, JT, FP)
    tile = tl.program_id(2)
    j += tile * JT
    valid = j < J
    inside = valid & (f < F)
    mean, square, linear, constant, by_benefit, by_cost = _go_back(
        statistics, brief, g_mean, g_spread, g_logit, rows, few, use, scale, b, j, f, n, B, J, S, 0, rate, eps, F, FP,
        IC, JT, HEINSEN, SCALE, LAST, MEAN, SPREAD, LOGIT,
    )  # fmt: skip
    if split == 0:
        _keep_table(table, table_few, b, j, f, B, J, 0, square, linear, by_benefit, by_cost, F)
    means = (mean,)
    squares = (2 * square,)
    linears = (linear,)
    twices = ()
    for t in tl.static_range(1, T):
        _, twice = _density_of(statistics, b, j, f, B, J, t - 1, eps, F, HEINSEN)
        twices = twices + (twice,)
        mine = (t * B + b) * (J * F)
        means = means + (tl.load(statistics + 3 * mine + j * F + f, mask=inside, other=0.0),)
        squares = squares + (2 * tl.load(table + 2 * mine + j * F + f, mask=inside, other=0.0),)
        linears = linears + (tl.load(table + 2 * mine + J * F + j * F + f, mask=inside, other=0.0),)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + n
        there = (i < I) & valid
        at = votes + ((b - b0) * I + i).to(tl.int64) * (J * F) + j * F + f
        V = tl.load(at, mask=(i < I) & inside, other=0.0)
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        total = tl.zeros((IC, JT, FP), tl.float32)
        for t in tl.static_range(T):
            plane = (b * I + i) * J + j
            d = V - means[t]
            if t == 0:
                x = g / J
                by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
                if HEINSEN:
                    pays = tl.load(use + i * b_i + j, mask=there, other=0.0)
                    by_x += by_benefit * (pays + tl.load(other + i * b_i + j, mask=there, other=0.0))
                _by_gate(gate_gradient, (tile * B + b) * I + i, i < I, by_x / J, other, i, j, I, J, b_i, by_benefit,
                         0 if LAST else tl.where(tile == 0, I, 0), HEINSEN)  # fmt: skip
            else:
                x = g * tl.load(R + ((t - 1) * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
            slant = x * squares[t]
            if t + 1 < T:
                y = tl.load(slope + (t * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
                slant += y * twices[t]
            total += tl.fma(slant, d, x * linears[t])
        tl.store(at, total, mask=(i < I) & inside)


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
            gradient = g * tl.load(table_few + (t * B + b) * (2 * J) + j, mask=j < J, other=0.0)
            used += share * gradient
            ignored -= (1 - share) * gradient
    tl.store(by_use + i * J + j, used, mask=inside)
    tl.store(by_ignore + i * J + j, ignored, mask=inside)
