"""All iterations over stored votes in one kernel, and their gradients in another, where a sample has one program.

What `route`, `believe`, `blame`, `slopes` and `last_gradients` do one after the other: nothing has to be put together,
so beliefs stay in registers. 17 launches become 7.
"""

import triton.language as tl

from capsroute.form.gaussian.gradients import blame_of, by_gate, by_weights, given, slope_of, to_logit, to_score
from capsroute.form.gaussian.iterations import constant_of, gathered, logit_of
from capsroute.form.gaussian.tiles import (
    BAYES,
    HEINSEN,
    LOWEST,
    add_children,
    add_pulls,
    believed,
    betas_of,
    betas_of_each,
    exact_volume_of,
    gained,
    no_pulls,
    nothing,
    places,
    store_three,
    tile_of_votes,
)
from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import exponential


@kernel("b0", "B", "I", "J", "NCH", "eps", "b_i", "rate0", "rate1", "rate2", "rate3")
def whole_forward(votes, gate, use, other, scale, statistics, brief, R, means, spreads, logits, b0, B, I, J, NCH, eps,
                  b_i, rate0, rate1, rate2, rate3, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
                  JT: tl.constexpr, NS: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr,
                  SCALE: tl.constexpr):  # fmt: skip
    """A program walks T times over all children of a sample, and keeps what its parents are."""
    in_turn()
    b = b0 + tl.program_id(0)
    j, n, f = places(JT, IC, FP)
    valid = j < J
    inside = valid & (f < F)
    centre = tl.zeros((1, JT, FP), tl.float32)
    precision = tl.zeros((1, JT, FP), tl.float32)
    # Of a density that gives all parents equal shares. What it has beside the square is kept in two parts, one exact.
    exact = tl.zeros((1, JT, 1), tl.float32)
    short = tl.zeros((1, JT, 1), tl.float32)
    alone = tl.zeros((1, JT, 1), tl.float32)  # what parents weigh after the first iteration
    for t in range(T):
        weight, benefit, m, r, q = nothing(JT, FP)
        for chunk in tl.range(NCH, num_stages=NS):
            i = chunk * IC + n
            V = tile_of_votes(votes, b - b0, chunk * IC, 0, I, J, F, FP, IC, JT)[0]
            g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
            d = V - centre
            near = tl.sum(tl.fma(precision * d, d, 0.0), axis=2, keep_dims=True) + short
            far = near + exact < LOWEST
            top = tl.max(tl.where(valid, tl.where(far, LOWEST, near + exact), -float("inf")), axis=1, keep_dims=True)
            # The highest is rounded, for all parents alike; what they differ by is not. It may be above zero by that.
            log_density = tl.minimum(near + (exact - top), 64.0, propagate_nan=tl.PropagateNan.ALL)
            log_density = tl.where(far, LOWEST - top, log_density)
            log_density = tl.where(valid, log_density, -float("inf"))
            share = exponential(log_density)
            share = tl.div_rn(share, tl.sum(share, axis=1, keep_dims=True))
            at = R + ((t - 1) * B * I).to(tl.int64) * J + (b * I + i) * J + j
            tl.store(at, share, mask=(i < I) & valid & (t > 0))
            x = tl.fma(g, share, 0.0)
            if KIND == HEINSEN:
                benefit += tl.sum(gained(use, other, x, g, i, j, I, J, b_i), axis=0, keep_dims=True)
            weight, m, r, q = add_children(V, x, tl.sum(x, axis=0, keep_dims=True), weight, m, r, q)
        mean, variance, rest = gathered(weight, m, r, q, weight, eps, KIND)
        new, spread = believed(mean, variance, weight, inside, eps, F, KIND)
        most, left = exact_volume_of(spread)
        alone = tl.where(t == 0, weight, alone)
        rate = tl.where(t == 0, rate0, tl.where(t == 1, rate1, tl.where(t == 2, rate2, rate3)))
        logit = logit_of(weight, benefit, most + left, alone, use, other, scale, b, j, f, J, rate, F, KIND, SCALE)
        exact, short = -0.5 * most, constant_of(weight, logit, left, f, F, KIND)
        centre, precision = new, tl.div_rn(-0.5, spread)
        row = (t * B + b).to(tl.int64) * J
        rows, few = statistics + row * (3 * F) + j * F + f, brief + row * 3 + j
        store_three(rows, mean, variance, rest, inside, J, F)
        store_three(few, weight, logit, exact + short, valid, J, 1)
        out = b * (J * F) + j * F + f
        tl.store(means + out, centre, mask=inside & (t == T - 1))
        tl.store(spreads + out, spread, mask=inside & (t == T - 1))
        tl.store(logits + b * J + j, logit, mask=valid & (t == T - 1))


@kernel(
    "b0", "B", "I", "J", "NCH", "eps", "b_i", "known", "rate0", "rate1", "rate2", "rate3", "r_t", "r_b", "r_i", "r_j"
)
def whole_backward(votes, gate, use, other, scale, statistics, brief, R, g_R, g_mean, g_spread, g_logit, slope,
                   gate_gradient, by_score, table_few, b0, B, I, J, NCH, eps, b_i, known, rate0, rate1, rate2, rate3,
                   r_t, r_b, r_i, r_j, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr,
                   NS: tl.constexpr, T: tl.constexpr, KIND: tl.constexpr, SCALE: tl.constexpr,
                   SHARES: tl.constexpr):  # fmt: skip
    """A program goes back through T iterations over all children of a sample; their votes become their gradients."""
    in_turn()
    b = b0 + tl.program_id(0)
    j, n, f = places(JT, IC, FP)
    valid = j < J
    inside = valid & (f < F)
    rates = (rate0, rate1, rate2, rate3)
    at = b * (J * F) + j * F + f
    by_mean = given(g_mean + at, inside, known, 0)
    by_spread = given(g_spread + at, inside, known, 1)
    by_logit = given(g_logit + b * J + j, valid, known, 2)
    by_constant = tl.zeros((1, JT, 1), tl.float32)
    by_all = by_constant
    alone = tl.load(brief + b * (3 * J) + j, mask=valid, other=0.0)
    means = ()
    squares = ()
    linears = ()
    twices = ()
    centres = ()  # of densities, where they are not the means
    for back in tl.static_range(T):
        # What `blame` does, of iteration T - 1 - back.
        row = ((T - 1 - back) * B + b).to(tl.int64) * J
        at = statistics + row * (3 * F) + j * F + f
        mean = tl.load(at, mask=inside, other=0.0)
        variance = tl.load(at + J * F, mask=inside, other=0.0)
        rest = tl.load(at + 2 * J * F, mask=inside, other=0.0)
        weight = tl.load(brief + row * 3 + j, mask=valid, other=0.0)
        logit = tl.load(brief + row * 3 + J + j, mask=valid, other=0.0)
        _, spread = believed(mean, variance, weight, inside, eps, F, KIND)
        if back > 0:
            by_spread = tl.div_rn(-0.5, spread) * (by_spread + by_constant)
            by_logit = to_logit(by_constant, logit, KIND)
        square, linear, constant, by_benefit, by_cost = blame_of(
            by_mean, by_spread, by_constant, by_logit, by_all, mean, variance, rest, weight, alone, logit, spread,
            inside, use, scale, b, j, f, J, T - 1 - back, rates[T - 1 - back], eps, F, KIND, SCALE)  # fmt: skip
        by_all = by_cost
        tl.store(table_few + row * 3 + J + j, by_benefit, mask=valid)
        tl.store(table_few + row * 3 + 2 * J + j, by_cost, mask=valid)
        means = means + (mean,)
        squares = squares + (2 * square,)
        linears = linears + (linear,)
        if back < T - 1:
            # What `slopes` does: the parents before this iteration are the next to be blamed.
            at = statistics + (row - B * J) * (3 * F) + j * F + f
            centre = tl.load(at, mask=inside, other=0.0)
            before = tl.load(at + J * F, mask=inside, other=1.0)
            had = tl.load(brief + (row - B * J) * 3 + j, mask=valid, other=0.0)
            centre, before = believed(centre, before, had, inside, eps, F, KIND)
            twice = tl.div_rn(-1.0, before)
            twices = twices + (twice,)
            centres = centres + (centre,)
            total, pulls, moments = no_pulls(JT, FP)
            for chunk in tl.range(NCH, num_stages=NS):
                i = chunk * IC + n
                there = (i < I) & valid
                V = tile_of_votes(votes, b - b0, chunk * IC, 0, I, J, F, FP, IC, JT)[0]
                g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
                plane = ((T - 2 - back) * B * I).to(tl.int64) * J + (b * I + i) * J + j
                share = tl.load(R + plane, mask=there, other=0.0)
                pays, costs = betas_of_each(use, other, chunk * IC, n, j, I, J, b_i, IC, KIND)
                by_x = by_weights(V - mean, square, linear, constant, by_benefit, pays, costs, KIND)
                y = slope_of(by_x, share, g, g_R, gate_gradient, costs, by_benefit, 0 if back == 0 else I, b, i, j, I,
                             J, r_b, r_i, r_j, KIND, SHARES, T - 2 - back, r_t)  # fmt: skip
                tl.store(slope + plane, y, mask=there)
                d = V - centre
                total, pulls, moments = add_pulls(d, twice * d * y, y, total, pulls, moments)
            by_constant, by_mean, by_spread = total, -pulls, moments
            tl.debug_barrier()  # what is stored of children is read again by other threads
    for chunk in tl.range(NCH, num_stages=NS):
        i = chunk * IC + n
        there = (i < I) & valid
        V, to, mask = tile_of_votes(votes, b - b0, chunk * IC, 0, I, J, F, FP, IC, JT)
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        pays, costs = betas_of(use, other, chunk * IC, n, j, I, J, b_i, KIND)
        by_x = by_weights(V - mean, square, linear, constant, by_benefit, pays, costs, KIND)
        pulled = by_gate(gate_gradient, b * I + i, by_x / J, costs, i, j, J, by_benefit, I if T > 1 else 0, KIND)
        tl.store(by_score + b * I + i, to_score(pulled, g, KIND), mask=i < I)
        found = tl.zeros((IC, JT, FP), tl.float32)
        for t in tl.static_range(T):
            plane = (b * I + i) * J + j
            if t == 0:
                x = g / J
            else:
                x = g * tl.load(R + ((t - 1) * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
            slant = x * squares[T - 1 - t]
            if t + 1 < T:
                y = tl.load(slope + (t * B * I).to(tl.int64) * J + plane, mask=there, other=0.0)
                if KIND == BAYES:
                    found = tl.fma(y * twices[T - 2 - t], V - centres[T - 2 - t], found)
                else:
                    slant += y * twices[T - 2 - t]
            found = tl.fma(slant, V - means[T - 1 - t], tl.fma(x, linears[T - 1 - t], found))
        tl.store(to, tl.reshape(found, (IC, JT * FP)), mask=mask)
