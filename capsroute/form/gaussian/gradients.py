"""Gradients of routing by Gaussians over stored votes [b,i,j,f], which take the place of the votes.

The way back needs a pass for each iteration's gradient by parents (`slopes`), and one for that of the votes
(`last_gradients`). Between them a small kernel (`blame`) says what the gradient by the weights of an iteration is, a
quadratic of d = vote - mean:

    table [t, b, (square, linear), j, f]                      table_few [t, b, (constant, benefit, cost), j]

where benefit and cost are what gradients of parameters are made of (`beta_sums`, `cost_sums`); in place of a cost that
parents do not have, variational Bayes has the gradient by the weight of all children. `density_gradients` and
`weights_gradients` go back through `density` and `weigh`. What programs leave of parents is told in `tiles`.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.bayes import blame_belief
from capsroute.form.gaussian.iterations import cost_of, divisor_of, gaussian_of
from capsroute.form.gaussian.tiles import (
    BAYES,
    HEINSEN,
    add_pulls,
    believed,
    betas_of,
    betas_of_each,
    density_of,
    finite,
    leave_pulls,
    no_pulls,
    places,
    store_three,
    tile_of_votes,
    volume_of,
)  # fmt: skip
from capsroute.form.launch import in_turn, kernel


@triton.jit
def given(pointer, mask, known, n):
    """The n-th of the gradients that may come, zero where it does not: `known` has its bit, known when it runs."""
    return tl.load(pointer, mask=mask & (tl.zeros((1, 1, 1), tl.int32) + (known >> n) % 2 == 1), other=0.0)


@triton.jit
def to_logit(by_constant, logit, KIND: tl.constexpr):
    """The gradient by logits, given that by the constants of log-densities."""
    if KIND == BAYES:  # whose scores are of the last iteration alone
        return tl.zeros_like(by_constant)
    else:
        return by_constant / (1 + tl.exp(logit))


@triton.jit
def blame_of(by_mean, by_spread, by_constant, by_logit, by_all, mean, variance, rest, weight, alone, logit, spread,
             inside, use, scale, b, j, f, J, t, rate, eps, F: tl.constexpr, KIND: tl.constexpr,
             SCALE: tl.constexpr):  # fmt: skip
    """What the gradient by weights is, given that by what parents are: square, linear, constant, benefit and cost.

    Of iteration t. Variational Bayes: `alone` is the weight after the first, `by_all` what those behind this one have
    left of the gradient by the weight of all children, and what this one leaves is the cost.
    """
    if KIND == BAYES:
        by_mean, by_variance, by_weight, by_cost = blame_belief(
            by_mean, by_spread, by_constant, by_logit, mean, variance, weight, spread, volume_of(spread), alone, inside,
            f, J, F)  # fmt: skip
        by_cost += by_all
        by_weight += tl.where(t == 0, J * by_cost, 0.0)
        by_benefit = by_logit
    elif KIND == HEINSEN:
        by_variance = by_spread
        by_benefit = by_logit
        if SCALE:
            by_benefit *= tl.load(scale + b)
        by_weight = tl.zeros_like(weight)
        by_cost = by_logit * logit  # of the scale, times it
    else:
        by_benefit = rate * by_logit
        by_weight = -by_benefit * cost_of(use, volume_of(spread), j, J, F)
        by_variance = by_spread + tl.div_rn(-0.5 * by_benefit * weight, spread)
        by_variance = tl.where(variance >= eps, by_variance, 0.0)
        by_cost = -by_benefit * weight * F
    divisor = divisor_of(weight, eps, KIND)
    square = tl.where(inside, tl.div_rn(by_variance, divisor), 0.0)
    # With eps, and with rounding, the mean is not quite the centre of mass, so the variance has a slope there.
    linear = tl.div_rn(by_mean - 2 * square * rest, divisor)
    constant = by_weight - tl.sum(tl.fma(square, variance, 0.0), axis=2, keep_dims=True)
    return square, linear, constant, by_benefit, by_cost


@kernel("b0", "B", "J", "S", "t", "rate", "eps")
def blame(statistics, brief, use, scale, g_mean, g_spread, g_logit, g_total, rows, few, table, table_few, b0, B, J, S,
          t, rate, eps, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, KIND: tl.constexpr,
          SCALE: tl.constexpr, LAST: tl.constexpr, MEAN: tl.constexpr, SPREAD: tl.constexpr, LOGIT: tl.constexpr,
          TOTAL: tl.constexpr):  # fmt: skip
    """The gradient by weights of iteration t, as tables; a program holds a few parents and keeps their gradients.

    Those come from the outputs (LAST: MEAN, SPREAD, LOGIT, TOTAL say of which they are given), or from S shares of the
    pass over the iteration behind this one.
    """
    in_turn()
    b = b0 + tl.program_id(0)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(1) * JT
    inside = (j < J) & (f < F)
    at = statistics + (t * B + b).to(tl.int64) * (3 * J * F) + j * F + f
    mean = tl.load(at, mask=inside, other=0.0)
    variance = tl.load(at + J * F, mask=inside, other=0.0)
    rest = tl.load(at + 2 * J * F, mask=inside, other=0.0)
    weight = tl.load(brief + (t * B + b).to(tl.int64) * (3 * J) + j, mask=j < J, other=0.0)
    logit = tl.load(brief + (t * B + b).to(tl.int64) * (3 * J) + J + j, mask=j < J, other=0.0)
    alone = tl.load(brief + b * (3 * J) + j, mask=j < J, other=0.0)
    _, spread = believed(mean, variance, weight, inside, eps, F, KIND)
    by_constant, by_mean, by_spread = no_pulls(JT, FP)
    by_logit, by_all = by_constant, by_constant
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
            slope = tl.load(few + (s * B + b).to(tl.int64) * J + j, mask=(s < S) & (j < J), other=0.0)
            by_constant += tl.sum(slope, axis=0, keep_dims=True)
            to = rows + (s * B + b).to(tl.int64) * (2 * J * F) + j * F + f
            by_mean -= tl.sum(tl.load(to, mask=(s < S) & inside, other=0.0), axis=0, keep_dims=True)
            by_spread += tl.sum(tl.load(to + J * F, mask=(s < S) & inside, other=0.0), axis=0, keep_dims=True)
        by_spread = tl.div_rn(-0.5, spread) * (by_spread + by_constant)
        by_logit = to_logit(by_constant, logit, KIND)
        if KIND == BAYES:
            by_all = tl.load(table_few + ((t + 1) * B + b).to(tl.int64) * (3 * J) + 2 * J + j, mask=j < J, other=0.0)
    square, linear, constant, by_benefit, by_cost = blame_of(
        by_mean, by_spread, by_constant, by_logit, by_all, mean, variance, rest, weight, alone, logit, spread, inside,
        use, scale, b, j, f, J, t, rate, eps, F, KIND, SCALE)  # fmt: skip
    if TOTAL:
        constant += tl.load(g_total + b * J + j, mask=j < J, other=0.0)
    to = table + (t * B + b).to(tl.int64) * (2 * J * F) + j * F + f
    tl.store(to, square, mask=inside)
    tl.store(to + J * F, linear, mask=inside)
    store_three(table_few + (t * B + b).to(tl.int64) * (3 * J) + j, constant, by_benefit, by_cost, j < J, J, 1)


@triton.jit
def _blamed(statistics, table, table_few, b, j, f, B, J, t, F: tl.constexpr):
    """What `blame` has left: mean, square, linear, constant and benefit."""
    inside = (j < J) & (f < F)
    mine = (t * B + b).to(tl.int64) * (J * F)
    mean = tl.load(statistics + 3 * mine + j * F + f, mask=inside, other=0.0)
    square = tl.load(table + 2 * mine + j * F + f, mask=inside, other=0.0)
    linear = tl.load(table + 2 * mine + J * F + j * F + f, mask=inside, other=0.0)
    few = table_few + (t * B + b).to(tl.int64) * (3 * J) + j
    constant, benefit = tl.load(few, mask=j < J, other=0.0), tl.load(few + J, mask=j < J, other=0.0)
    return mean, square, linear, constant, benefit


@triton.jit
def by_weights(d, square, linear, constant, by_benefit, pays, costs, KIND: tl.constexpr):
    """The gradient by the weights of a tile [IC,JT,1]: the quadratic, and what they earn (Heinsen)."""
    by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
    if KIND == HEINSEN:
        by_x += by_benefit * (pays + costs)
    return by_x


@triton.jit
def by_gate(gate_gradient, at, total, costs, i, j, J, by_benefit, before, KIND: tl.constexpr):
    """Gradients by gates [IC,1,1], added to those that passes before this have left, of so many children."""
    if KIND == HEINSEN:
        total -= costs * by_benefit
    found = tl.sum(tl.where(j < J, total, 0.0), axis=1, keep_dims=True)
    return found + tl.load(gate_gradient + at, mask=i < before, other=0.0)


@triton.jit
def slope_of(by_x, share, g, g_R, gate_gradient, costs, by_benefit, before, b, i, j, I, J, r_b, r_i, r_j,
             KIND: tl.constexpr, SHARES: tl.constexpr, t=None, r_t=None):  # fmt: skip
    """The gradient by log-densities [IC,JT,1], from that by weights, g times shares; that by gates is written.

    SHARES: shares have a gradient of their own, g_R [b,i,j], or [t,b,i,j] if there is a t.
    """
    by_x = finite(by_x)
    pulled = by_gate(gate_gradient, b * I + i, share * by_x, costs, i, j, J, by_benefit, before, KIND)
    tl.store(gate_gradient + b * I + i, pulled, mask=i < I)
    # Rounded before it is subtracted from itself: where one parent has all of a child the difference is zero.
    by_share = tl.fma(g, by_x, 0.0)
    if SHARES:
        if t is not None:
            g_R += t * r_t
        by_share += tl.load(g_R + b * r_b + i * r_i + j * r_j, mask=(i < I) & (j < J), other=0.0)
    by_share -= tl.sum(tl.fma(share, by_share, 0.0), axis=1, keep_dims=True)
    if KIND == BAYES:  # what all parents have alike is large, and shares sum to one only but for a rounding
        by_share -= tl.sum(tl.fma(share, by_share, 0.0), axis=1, keep_dims=True)
    return share * by_share


@triton.jit
def to_score(by_gate, gate, KIND: tl.constexpr):
    """The gradient by what gates are made of: logits, or the gates themselves."""
    if KIND == HEINSEN:
        by_gate *= gate * (1 - gate)
    return by_gate


@kernel("b0", "B", "I", "J", "NCH", "t", "eps", "b_i", "r_b", "r_i", "r_j")
def slopes(votes, gate, use, other, statistics, brief, table, table_few, R, g_R, rows, few, slope, gate_gradient, b0,
           B, I, J, NCH, t, eps, b_i, r_b, r_i, r_j, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
           JT: tl.constexpr, NS: tl.constexpr, KIND: tl.constexpr, LAST: tl.constexpr,
           SHARES: tl.constexpr):  # fmt: skip
    """Back through iteration t > 0: a program holds all parents of a sample and walks over a share of its children.

    It writes slope [b,i,j], the gradients of log-densities, and those by gates; it keeps the sums of the pulls on the
    parents before the iteration. SHARES: R itself has a gradient too, g_R.
    """
    in_turn()
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    mean, square, linear, constant, by_benefit = _blamed(statistics, table, table_few, b, j, f, B, J, t, F)
    centre, twice = density_of(statistics, brief, b, j, f, B, J, t - 1, eps, F, KIND)
    total, pulls, moments = no_pulls(JT, FP)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        there = (i < I) & (j < J)
        V = tile_of_votes(votes, b - b0, first, 0, I, J, F, FP, IC, JT)[0]
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        share = tl.load(R + (b * I + i) * J + j, mask=there, other=0.0)
        pays, costs = betas_of_each(use, other, first, n, j, I, J, b_i, IC, KIND)
        by_x = by_weights(V - mean, square, linear, constant, by_benefit, pays, costs, KIND)
        y = slope_of(by_x, share, g, g_R, gate_gradient, costs, by_benefit, 0 if LAST else I, b, i, j, I, J, r_b, r_i,
                     r_j, KIND, SHARES)  # fmt: skip
        tl.store(slope + (b * I + i) * J + j, y, mask=there)
        total, pulls, moments = add_pulls(V - centre, twice * (V - centre) * y, y, total, pulls, moments)
    leave_pulls(rows, few, split * B + b, j, f, J, total, pulls, moments, F)


@kernel("b0", "B", "I", "J", "NCH", "eps", "b_i")
def last_gradients(votes, gate, use, other, statistics, brief, table, table_few, R, slope, gate_gradient, by_score, b0,
                   B, I, J, NCH, eps, b_i, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                   NS: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """Back through the first iteration; then votes become their gradients, through all T of them.

    A program holds a tile of the parents, what they were in every iteration, and walks over a share of the children. R
    and slope [T - 1, b, i, j] are those of iterations 1 and on; gate_gradient [b, i], and by_score [tile, b, i], in the
    end, of any dtype.
    """
    in_turn()
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    mean, square, linear, constant, by_benefit = _blamed(statistics, table, table_few, b, j, f, B, J, 0, F)
    means = (mean,)
    squares = (2 * square,)
    linears = (linear,)
    twices = ()
    centres = ()  # of densities, where they are not the means
    for t in tl.static_range(1, T):
        centre, twice = density_of(statistics, brief, b, j, f, B, J, t - 1, eps, F, KIND)
        mean_t, square_t, linear_t, _, _ = _blamed(statistics, table, table_few, b, j, f, B, J, t, F)
        twices = twices + (twice,)
        centres = centres + (centre,)
        means = means + (mean_t,)
        squares = squares + (2 * square_t,)
        linears = linears + (linear_t,)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        there = (i < I) & (j < J)
        V, at, mask = tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, IC, JT)
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        plane = (b * I + i) * J + j
        total = tl.zeros((IC, JT, FP), tl.float32)
        for t in tl.static_range(T):
            d = V - means[t]
            if t == 0:
                x = g / J
                pays, costs = betas_of(use, other, first, n, j, I, J, b_i, KIND)
                by_x = by_weights(d, square, linear, constant, by_benefit, pays, costs, KIND)
                before = tl.where(tile == 0, I, 0) if T > 1 else 0
                mine = (tile * B + b) * I + i
                pulled = by_gate(gate_gradient, mine, by_x / J, costs, i, j, J, by_benefit, before, KIND)
                tl.store(by_score + mine, to_score(pulled, g, KIND), mask=i < I)
            else:
                x = g * tl.load(R + ((t - 1) * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
            slant = x * squares[t]
            if t + 1 < T:
                y = tl.load(slope + (t * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
                if KIND == BAYES:
                    total = tl.fma(y * twices[t], V - centres[t], total)
                else:
                    slant += y * twices[t]
            total = tl.fma(slant, d, tl.fma(x, linears[t], total))
        tl.store(at, tl.reshape(total, (IC, JT * FP)), mask=mask)


@kernel("b0", "B", "I", "J", "NCH", "g_b", "g_i", "g_j")
def density_gradients(votes, mean, variance, slope, rows, few, b0, B, I, J, NCH, g_b, g_i, g_j, F: tl.constexpr,
                      FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """Votes become their gradients, from that of the log-densities, `slope`: a program walks over a share of the
    children of a tile of parents, and keeps the sums of the pulls on those."""
    in_turn()
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    centre, spread = gaussian_of(mean, variance, b, j, f, J, F)
    twice = tl.div_rn(-1.0, spread)
    total, pulls, moments = no_pulls(JT, FP)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        V, at, mask = tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, IC, JT)
        y = tl.load(slope + b * g_b + i * g_i + j * g_j, mask=(i < I) & (j < J), other=0.0)
        pull = twice * (V - centre) * y
        total, pulls, moments = add_pulls(V - centre, pull, y, total, pulls, moments)
        tl.store(at, tl.reshape(pull, (IC, JT * FP)), mask=mask)
    leave_pulls(rows, few, split * B + b, j, f, J, total, pulls, moments, F)


@kernel("b0", "B", "I", "J", "NCH", "w_b", "w_i", "w_j")
def weights_gradients(votes, weights, beta, statistics, table, table_few, by_weights, b0, B, I, J, NCH, w_b, w_i, w_j,
                      F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr,
                      BETA: tl.constexpr):  # fmt: skip
    """Votes become their gradients, from what `blame` has left; and by_weights [b,i,j]. A program holds a tile of
    parents, walks over a share of the children and keeps nothing."""
    in_turn()
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    mean, square, linear, constant, by_dots = _blamed(statistics, table, table_few, b, j, f, B, J, 0, F)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        there = (i < I) & (j < J)
        V, at, mask = tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, IC, JT)
        d = V - mean
        x = tl.load(weights + b * w_b + i * w_i + j * w_j, mask=there, other=0.0)
        by_x = tl.sum(tl.fma(d, linear + square * d, 0.0), axis=2, keep_dims=True) + constant
        if BETA:
            by_x += by_dots * tl.load(beta + i * J + j, mask=there, other=0.0)
        tl.store(by_weights + (b * I + i) * J + j, by_x, mask=there)
        tl.store(at, tl.reshape(x * (linear + 2 * square * d), (IC, JT * FP)), mask=mask)


@kernel("B", "I", "J", "NB")
def beta_sums(R, gate, table_few, by_use, by_ignore, B, I, J, NB, T: tl.constexpr, BT: tl.constexpr,
              IC: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """by_use and by_ignore [split,i,j]: sums of gate R g and -gate (1 - R) g, where g are the gradients of benefits.

    A program sums over its share of the samples, NB times BT of them, and over iterations, for a tile of i and j.
    """
    in_turn()
    i = tl.program_id(0) * IC + tl.arange(0, IC)[None, :, None]
    j = tl.program_id(1) * JT + tl.arange(0, JT)[None, None, :]
    split = tl.program_id(2)
    inside = (i < I) & (j < J)
    used = tl.zeros((BT, IC, JT), tl.float32)
    ignored = tl.zeros((BT, IC, JT), tl.float32)
    for step in range(NB):
        b = (split * NB + step) * BT + tl.arange(0, BT)[:, None, None]
        g = tl.load(gate + b * I + i, mask=(i < I) & (b < B), other=0.0)
        for t in tl.static_range(T):
            if t == 0:
                share = tl.zeros((BT, IC, JT), tl.float32) + 1.0 / J
            else:
                at = R + (((t - 1) * B + b) * I + i).to(tl.int64) * J + j
                share = tl.load(at, mask=inside & (b < B), other=0.0)
            at = table_few + (t * B + b).to(tl.int64) * (3 * J) + J + j
            gradient = g * tl.load(at, mask=(j < J) & (b < B), other=0.0)
            used += share * gradient
            ignored -= (1 - share) * gradient
    to = (split * I + i) * J + j
    tl.store(by_use + to, tl.sum(used, axis=0, keep_dims=True), mask=inside)
    tl.store(by_ignore + to, tl.sum(ignored, axis=0, keep_dims=True), mask=inside)


@kernel("N", "J")
def cost_sums(table_few, by_benefit, by_cost, N, J, BT: tl.constexpr, JT: tl.constexpr, KIND: tl.constexpr):
    """A program sums over samples and iterations, N in all, the gradients that parameters of parents need, for JT of j.

    In variational Bayes costs are what benefits are not.
    """
    in_turn()
    j = tl.program_id(0) * JT + tl.arange(0, JT)[None, :]
    first = tl.zeros((1, JT), tl.float32)
    second = tl.zeros((1, JT), tl.float32)
    for begin in range(0, N, BT):
        n = begin + tl.arange(0, BT)[:, None]
        at, mask = table_few + n * (3 * J) + J + j, (n < N) & (j < J)
        first += tl.sum(tl.load(at, mask=mask, other=0.0), axis=0, keep_dims=True)
        if KIND == BAYES:
            second = -first
        else:
            second += tl.sum(tl.load(at + J, mask=mask, other=0.0), axis=0, keep_dims=True)
    tl.store(by_benefit + j, first, mask=j < J)
    tl.store(by_cost + j, second, mask=j < J)
