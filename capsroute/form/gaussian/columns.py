"""Routing by Gaussians over stored votes where parents do not fit into a program: columns of them, and planes.

A program over columns holds a tile of a sample's parents and walks over all of its children, so nothing is left to put
together. Children compete in a plane [b,i,j], in which a program holds a row of all parents. An iteration is

    `fit_columns`    moments of the votes with the shares of the plane; what parents are then; squares of the next
                     log-densities into the next plane
    `share_plane`    which become shares there

and on the way back

    `blame_columns`  sums of the pulls on parents; what the gradient by weights is then, of each vote into the plane
    `slope_plane`    which becomes that by log-densities there

`gradients.last_gradients` then makes gradients of the votes. Sums over children are kept by each row of a tile for
itself, until the walk ends: no thread waits for another.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.gradients import blame_of, by_weights, given, to_logit
from capsroute.form.gaussian.iterations import constant_of, gathered, logit_of
from capsroute.form.gaussian.tiles import (
    BAYES,
    HEINSEN,
    LOWEST,
    add_each,
    believed,
    betas_of,
    density_of,
    finite,
    gained,
    offset_of,
    places,
    store_three,
    tile_of_votes,
    volume_of,
)
from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import exponential


@kernel("b0", "B", "I", "J", "NCH", "t", "last", "rate", "eps", "b_i")
def fit_columns(votes, gate, use, other, scale, statistics, brief, R, means, spreads, logits, b0, B, I, J, NCH, t, last,
                rate, eps, b_i, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, C: tl.constexpr, JT: tl.constexpr,
                NS: tl.constexpr, KIND: tl.constexpr, SCALE: tl.constexpr):  # fmt: skip
    """Iteration t of `last` + 1, by shares R [t - 1, b, i, j], or equal ones; R [t, b, i, j] gets squares of densities.

    The last of them writes the outputs instead.
    """
    in_turn()
    b, tile = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    valid = j < J
    inside = valid & (f < F)
    ROWS: tl.constexpr = IC // C
    few, pose = tl.zeros((ROWS, JT, 1), tl.float32), tl.zeros((ROWS, JT, FP), tl.float32)
    w, earned, m, r, q = few, few, pose, pose, pose
    plane = R + (t * B * I).to(tl.int64) * J
    before, shared = plane - (B * I).to(tl.int64) * J, tl.where(t > 0, I, 0)  # so many children have shares
    for chunk in tl.range(NCH, num_stages=1):  # of more, registers keep others from the core
        V = ()
        x = ()
        for c in tl.static_range(C):
            first = chunk * IC + c * ROWS
            i = first + tl.arange(0, ROWS)[:, None, None]
            V = V + (tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, ROWS, JT)[0],)
            g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
            share = tl.load(before + (b * I + i) * J + j, mask=(i < shared) & valid, other=0.0)
            x = x + (tl.where(t > 0, tl.fma(g, share, 0.0), g / J),)
            if KIND == HEINSEN:
                earned += gained(use, other, x[c], g, i, j, I, J, b_i)
        w, m, r, q = add_each(V, x, w, m, r, q, C)
    weight = tl.sum(w, axis=0, keep_dims=True)
    mean, variance, rest = gathered(w, m, r, q, weight, eps, KIND)
    centre, spread = believed(mean, variance, weight, inside, eps, F, KIND)
    volume = volume_of(spread)
    to = brief + (t * B + b).to(tl.int64) * (3 * J) + j
    tl.store(to, weight, mask=valid)
    benefit = tl.sum(earned, axis=0, keep_dims=True)
    alone = weight  # after the first iteration
    if KIND == BAYES:
        alone = tl.where(t == 0, weight, tl.load(brief + b * (3 * J) + j, mask=j < tl.where(t > 0, J, 0), other=0.0))
    logit = logit_of(weight, benefit, volume, alone, use, other, scale, b, j, f, J, rate, F, KIND, SCALE)
    tl.store(to + J, logit, mask=valid)
    tl.store(to + 2 * J, constant_of(weight, logit, volume, f, F, KIND), mask=valid)
    store_three(statistics + (t * B + b).to(tl.int64) * (3 * J * F) + j * F + f, mean, variance, rest, inside, J, F)
    at, ends = b * (J * F) + j * F + f, j < tl.where(t == last, J, 0)
    tl.store(means + at, centre, mask=ends & (f < F))
    tl.store(spreads + at, spread, mask=ends & (f < F))
    tl.store(logits + b * J + j, logit, mask=ends)
    precision = tl.div_rn(-0.5, spread)
    for chunk in tl.range(tl.where(t < last, NCH, 0), num_stages=NS):
        i = chunk * IC + n
        d = tile_of_votes(votes, b - b0, chunk * IC, tile, I, J, F, FP, IC, JT)[0] - centre
        square = tl.sum(tl.fma(precision * d, d, 0.0), axis=2, keep_dims=True)
        tl.store(plane + (b * I + i) * J + j, square, mask=(i < I) & valid)


@triton.jit
def _log_density(plane, constants, offset, j, J):
    """A child so far from all parents that no density is left belongs to all alike, as after any other tie."""
    constant = tl.load(constants + j, mask=j < J, other=0.0) - offset
    found = tl.load(plane + j, mask=j < J, other=0.0) + constant
    return tl.where(j < J, tl.where(found < LOWEST, LOWEST, found), -float("inf"))


@kernel("b0", "B", "I", "J", "t")
def share_plane(R, brief, b0, B, I, J, t, JC: tl.constexpr, ONCE: tl.constexpr):
    """Squares R [t,b,i,j] of log-densities become shares: a program holds a child and JC of its parents at a time.

    What parents have beside the squares is moved as in `tiles.nearer_zero`.
    """
    in_turn()
    row = b0 * I + tl.program_id(0)
    j = tl.arange(0, JC)
    plane = R + ((t * B * I).to(tl.int64) + row) * J
    constants = brief + (t * B + row // I) * (3 * J) + 2 * J
    top, bottom = tl.full((JC,), LOWEST, tl.float32), tl.full((JC,), -LOWEST, tl.float32)
    for first in range(0, J, JC):
        constant = tl.load(constants + first + j, mask=first + j < J, other=0.0)
        top = tl.where(first + j < J, tl.maximum(top, constant), top)
        bottom = tl.where(first + j < J, tl.minimum(bottom, constant), bottom)
    offset = offset_of(tl.max(top, axis=0), tl.min(bottom, axis=0))
    if ONCE:
        found = _log_density(plane, constants, offset, j, J)
        share = exponential(found - tl.max(found, axis=0))
        tl.store(plane + j, tl.div_rn(share, tl.sum(share, axis=0)), mask=j < J)
        return
    high = tl.full((JC,), -float("inf"), tl.float32)
    for first in range(0, J, JC):
        high = tl.maximum(high, _log_density(plane, constants, offset, first + j, J))
    largest = tl.max(high, axis=0)
    total = tl.zeros((JC,), tl.float32)
    for first in range(0, J, JC):
        total += exponential(_log_density(plane, constants, offset, first + j, J) - largest)
    whole = tl.sum(total, axis=0)
    for first in range(0, J, JC):
        share = exponential(_log_density(plane, constants, offset, first + j, J) - largest)
        tl.store(plane + first + j, tl.div_rn(share, whole), mask=first + j < J)


@kernel("b0", "B", "I", "J", "NCH", "t", "last", "known", "rate", "eps", "b_i")
def blame_columns(votes, use, other, scale, statistics, brief, g_mean, g_spread, g_logit, slope, table, table_few, b0,
                  B, I, J, NCH, t, last, known, rate, eps, b_i, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
                  C: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, KIND: tl.constexpr,
                  SCALE: tl.constexpr):  # fmt: skip
    """What `gradients.blame` says of iteration t of `last` + 1, from outputs or from slope [t,b,i,j]; and what that is
    for the weight of each vote: slope [t - 1, b, i, j]."""
    in_turn()
    b, tile = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    valid = j < J
    inside = valid & (f < F)
    centre, twice = density_of(statistics, brief, b, j, f, B, J, t, eps, F, KIND)
    ROWS: tl.constexpr = IC // C
    few, pose = tl.zeros((ROWS, JT, 1), tl.float32), tl.zeros((ROWS, JT, FP), tl.float32)
    total, pulls, moments = few, pose, pose
    plane = slope + (t * B * I).to(tl.int64) * J
    for chunk in tl.range(tl.where(t < last, NCH, 0), num_stages=1):
        for c in tl.static_range(C):
            first = chunk * IC + c * ROWS
            i = first + tl.arange(0, ROWS)[:, None, None]
            d = tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, ROWS, JT)[0] - centre
            y = tl.load(plane + (b * I + i) * J + j, mask=(i < I) & valid, other=0.0)
            pull = twice * d * y
            total += y
            pulls += pull
            moments += pull * d
    at = statistics + (t * B + b).to(tl.int64) * (3 * J * F) + j * F + f
    mean = tl.load(at, mask=inside, other=0.0)
    variance = tl.load(at + J * F, mask=inside, other=0.0)
    rest = tl.load(at + 2 * J * F, mask=inside, other=0.0)
    at = brief + (t * B + b).to(tl.int64) * (3 * J) + j
    weight, logit = tl.load(at, mask=valid, other=0.0), tl.load(at + J, mask=valid, other=0.0)
    alone = tl.load(brief + b * (3 * J) + j, mask=valid, other=0.0)
    _, spread = believed(mean, variance, weight, inside, eps, F, KIND)
    at, ends = b * (J * F) + j * F + f, j < tl.where(t == last, J, 0)
    by_constant = tl.sum(total, axis=0, keep_dims=True)
    by_spread = 0.5 * tl.where(inside, twice, 0.0) * (tl.sum(moments, axis=0, keep_dims=True) + by_constant)
    by_spread = tl.where(ends, given(g_spread + at, ends & (f < F), known, 1), by_spread)
    by_mean = given(g_mean + at, ends & (f < F), known, 0) - tl.sum(pulls, axis=0, keep_dims=True)
    by_logit = tl.where(ends, given(g_logit + b * J + j, ends, known, 2), to_logit(by_constant, logit, KIND))
    by_all = tl.zeros_like(by_logit)
    if KIND == BAYES:
        behind = table_few + ((t + 1) * B + b).to(tl.int64) * (3 * J) + 2 * J + j
        by_all += tl.load(behind, mask=j < tl.where(t < last, J, 0), other=0.0)
    square, linear, constant, by_benefit, by_cost = blame_of(
        by_mean, by_spread, by_constant, by_logit, by_all, mean, variance, rest, weight, alone, logit, spread, inside,
        use, scale, b, j, f, J, t, rate, eps, F, KIND, SCALE)  # fmt: skip
    to = table + (t * B + b).to(tl.int64) * (2 * J * F) + j * F + f
    tl.store(to, square, mask=inside)
    tl.store(to + J * F, linear, mask=inside)
    store_three(table_few + (t * B + b).to(tl.int64) * (3 * J) + j, constant, by_benefit, by_cost, valid, J, 1)
    plane -= (B * I).to(tl.int64) * J
    for chunk in tl.range(tl.where(t > 0, NCH, 0), num_stages=NS):
        i = chunk * IC + n
        V = tile_of_votes(votes, b - b0, chunk * IC, tile, I, J, F, FP, IC, JT)[0]
        pays, costs = betas_of(use, other, chunk * IC, n, j, I, J, b_i, KIND)
        by_x = by_weights(V - mean, square, linear, constant, by_benefit, pays, costs, KIND)
        tl.store(plane + (b * I + i) * J + j, finite(by_x), mask=(i < I) & valid)


@triton.jit
def _by_share(plane, g_R, row, j, J, g, r_j, SHARES: tl.constexpr):
    """Gradients by weights and by shares."""
    by_x = tl.load(plane + j, mask=j < J, other=0.0)
    # Rounded before it is subtracted from itself: where one parent has all of a child the difference is zero.
    by_share = tl.fma(g, by_x, 0.0)
    if SHARES:
        by_share += tl.load(g_R + row + j * r_j, mask=j < J, other=0.0)
    return by_x, by_share


@kernel("b0", "B", "I", "J", "t", "last", "b_i", "r_b", "r_i", "r_j")
def slope_plane(slope, R, g_R, gate, other, table_few, gate_gradient, b0, B, I, J, t, last, b_i, r_b, r_i, r_j,
                JC: tl.constexpr, ONCE: tl.constexpr, KIND: tl.constexpr, SHARES: tl.constexpr):  # fmt: skip
    """Gradients slope [t - 1, b, i, j] by weights of iteration t become those by log-densities, through shares R.

    A program holds a child and walks over parents, JC at a time; the gradient by its gate is added to what later
    iterations have left. SHARES: R itself has a gradient too, g_R [b,i,j].
    """
    in_turn()
    row = b0 * I + tl.program_id(0)
    b, i = row // I, row % I
    j = tl.arange(0, JC)
    at = (((t - 1) * B * I).to(tl.int64) + row) * J
    plane, R = slope + at, R + at
    g, of_row = tl.load(gate + row), b * r_b + i * r_i
    by_gate, whole = tl.zeros((JC,), tl.float32), tl.zeros((JC,), tl.float32)
    for first in range(0, J, JC):
        share = tl.load(R + first + j, mask=first + j < J, other=0.0)
        by_x, by_share = _by_share(plane, g_R, of_row, first + j, J, g, r_j, SHARES)
        by_gate += share * by_x
        if KIND == HEINSEN:
            costs = tl.load(other + i * b_i + first + j, mask=first + j < J, other=0.0).to(tl.float32)
            benefit = tl.load(
                table_few + (t * B + b).to(tl.int64) * (3 * J) + J + first + j, mask=first + j < J, other=0.0
            )
            by_gate -= costs * benefit
        whole += tl.fma(share, by_share, 0.0)
    average, rest = tl.sum(whole, axis=0), 0.0
    if KIND == BAYES:  # again, as `gradients.slope_of`
        whole = tl.zeros((JC,), tl.float32)
        for first in range(0, J, JC):
            share = tl.load(R + first + j, mask=first + j < J, other=0.0)
            _, by_share = _by_share(plane, g_R, of_row, first + j, J, g, r_j, SHARES)
            whole += tl.fma(share, by_share - average, 0.0)
        rest = tl.sum(whole, axis=0)
    for first in range(0, J, JC):
        share = tl.load(R + first + j, mask=first + j < J, other=0.0)
        _, by_share = _by_share(plane, g_R, of_row, first + j, J, g, r_j, SHARES)
        tl.store(plane + first + j, share * (by_share - average - rest), mask=first + j < J)
    found = tl.sum(by_gate, axis=0)
    found += tl.load(gate_gradient + row, mask=t < last, other=0.0)
    tl.store(gate_gradient + row, found)
