"""Routing by Gaussians over stored votes [b,i,j,f]: one kernel over the votes an iteration, and a small one.

The first, `begin`, has equal shares for all parents. A program of `route` holds all parents of a sample and walks over
a share of its children. `believe` puts the programs' shares together (see `tiles`), and says what parents then are:

    statistics [t, b, (mean, variance, rest), j, f]           brief [t, b, (weight, logit, constant), j]

where the constant is what a log-density has beside its square. `weigh` and `density` are the two halves of an
iteration, asked for one at a time over a tile of the parents: for parents that compete in another way.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.bayes import constant_of_belief, score_of
from capsroute.form.gaussian.tiles import (
    BAYES,
    HEINSEN,
    LOWEST,
    NONE,
    add_children,
    believed,
    density_of,
    gained,
    inverse_of,
    leave_share,
    nearer_zero,
    nothing,
    places,
    store_three,
    tile_of_votes,
    volume_of,
)  # fmt: skip
from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import exponential


@triton.jit
def cost_of(use, volume, j, J, F: tl.constexpr):
    """What a unit of weight costs in EM."""
    return F * tl.load(use + j, mask=j < J, other=0.0).to(tl.float32) + 0.5 * volume


@triton.jit
def divisor_of(weight, eps, KIND: tl.constexpr):
    """What sums over children are divided by."""
    if KIND == HEINSEN:
        weight += eps
    return tl.where(weight < NONE, 1.0, weight)


@triton.jit
def gathered(w, m, r, q, weight, eps, KIND: tl.constexpr):
    """Mean, variance and rest [1,JT,FP] of parents, from shares [IC,JT,..] of their moments and the whole weight.

    With eps the divisor is not quite the total weight, so the mean is not quite the centre of mass. It is taken twice,
    the second time from the first: where variances are tight every rounding of it shows in the densities. A quotient,
    not a product with an inverse: that would be fused into differences from the mean, which are of another mean then.
    """
    divisor = divisor_of(weight, eps, KIND)
    mean = tl.div_rn(tl.sum(tl.fma(w, m, r), axis=0, keep_dims=True), divisor)
    off = (weight - divisor) * mean + tl.sum(tl.fma(w, m - mean, r), axis=0, keep_dims=True)
    mean += tl.div_rn(off, divisor)
    d = m - mean
    own = tl.fma(w, d, r)
    square = tl.sum(tl.fma(d, r + own, q), axis=0, keep_dims=True)
    return mean, tl.div_rn(square, divisor), tl.sum(own, axis=0, keep_dims=True)


@triton.jit
def logit_of(weight, benefit, volume, alone, use, act, scale, b, j, f, J, rate, F: tl.constexpr, KIND: tl.constexpr,
             SCALE: tl.constexpr):  # fmt: skip
    """Logits of parents; `alone` is their weight after the first iteration."""
    if KIND == HEINSEN:
        logit = benefit
        if SCALE:
            logit *= tl.load(scale + b)
    elif KIND == BAYES:
        logit = score_of(weight, volume, alone, use, act, f, j, J, F)
    else:
        acts = tl.load(act + j, mask=j < J, other=0.0).to(tl.float32)
        logit = rate * (acts - cost_of(use, volume, j, J, F) * weight)
    return logit


@triton.jit
def constant_of(weight, logit, volume, f, F: tl.constexpr, KIND: tl.constexpr):
    """What parents' log-densities have beside the square, where `volume` is the sum of logarithms or a part of it."""
    if KIND == BAYES:
        return constant_of_belief(weight, volume, f, F)
    else:
        prior = tl.minimum(logit, 0.0) - tl.log(1 + tl.exp(-tl.abs(logit)))  # log of the logistic function
        return prior - 0.5 * volume


@triton.jit
def _left(rows, few, s, b, B, S, j, f, J, F: tl.constexpr):
    """Weights, means and rests that programs s of a pass have left, and where the means lie."""
    there = (s < S) & (j < J)
    inside = (s < S) & ((j < J) & (f < F))
    to = rows + (s * B + b).to(tl.int64) * (3 * J * F) + j * F + f
    w = tl.load(few + (s * B + b).to(tl.int64) * (2 * J) + j, mask=there, other=0.0)
    return w, tl.load(to, mask=inside, other=0.0), tl.load(to + J * F, mask=inside, other=0.0), to


@triton.jit
def _sums(few, b, B, S, J, IC: tl.constexpr, JT: tl.constexpr):
    """The sum over all shares [1,JT,1] of what lies at `few`: read as a matrix, of which a thread reads less."""
    s, j = tl.arange(0, IC)[:, None], tl.program_id(1) * JT + tl.arange(0, JT)[None, :]
    x = tl.load(few + (s * B + b).to(tl.int64) * (2 * J) + j, mask=(s < S) & (j < J), other=0.0)
    return tl.sum(x, axis=0)[None, :, None]


@kernel("b0", "B", "J", "S", "t", "rate", "eps")
def believe(use, act, scale, rows, few, statistics, brief, means, spreads, logits, b0, B, J, S, t, rate, eps,
            F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, KIND: tl.constexpr,
            ONCE: tl.constexpr, SCALE: tl.constexpr, LAST: tl.constexpr):  # fmt: skip
    """What parents are after iteration t: a program puts S shares of a few parents together, IC of them at a time.

    It keeps their weights, means and squares; and writes statistics, brief and (LAST) the outputs.
    """
    in_turn()
    b = b0 + tl.program_id(0)
    j, n, f = places(JT, IC, FP)
    j += tl.program_id(1) * JT
    inside = (j < J) & (f < F)
    weight, benefit, moment, rest, square = nothing(JT, FP)
    if ONCE:  # all shares are read at once, and stay in registers
        w, m, r, to = _left(rows, few, n, b, B, S, j, f, J, F)
        q = tl.load(to + 2 * J * F, mask=(n < S) & inside, other=0.0)
        weight, benefit = _sums(few, b, B, S, J, IC, JT), _sums(few + J, b, B, S, J, IC, JT)
        mean, variance, rest = gathered(w, m, r, q, weight, eps, KIND)
    else:
        for begin in range(0, S, IC):
            s = begin + n
            w, m, r, _ = _left(rows, few, s, b, B, S, j, f, J, F)
            weight += tl.sum(w, axis=0, keep_dims=True)
            gained = tl.load(few + (s * B + b).to(tl.int64) * (2 * J) + J + j, mask=(s < S) & (j < J), other=0.0)
            benefit += tl.sum(gained, axis=0, keep_dims=True)
            moment += tl.sum(tl.fma(w, m, r), axis=0, keep_dims=True)
        # As `gathered`, a few shares at a time.
        divisor = divisor_of(weight, eps, KIND)
        mean = tl.div_rn(moment, divisor)
        off = (weight - divisor) * mean
        for begin in range(0, S, IC):
            w, m, r, _ = _left(rows, few, begin + n, b, B, S, j, f, J, F)
            off += tl.sum(tl.fma(w, m - mean, r), axis=0, keep_dims=True)
        mean += tl.div_rn(off, divisor)
        for begin in range(0, S, IC):
            w, m, r, to = _left(rows, few, begin + n, b, B, S, j, f, J, F)
            d = m - mean
            own = tl.fma(w, d, r)
            q = tl.load(to + 2 * J * F, mask=(begin + n < S) & inside, other=0.0)
            rest += tl.sum(own, axis=0, keep_dims=True)
            square += tl.sum(tl.fma(d, r + own, q), axis=0, keep_dims=True)
        variance = tl.div_rn(square, divisor)
    # What is stored is stored before it is used: Triton 3.6 fails to order the two with one parent in a tile.
    to = brief + (t * B + b).to(tl.int64) * (3 * J) + j
    tl.store(to, weight, mask=j < J)
    centre, spread = believed(mean, variance, weight, inside, eps, F, KIND)
    volume = volume_of(spread)
    alone = weight  # after the first iteration
    if KIND == BAYES:
        alone = tl.where(t == 0, weight, tl.load(brief + b * (3 * J) + j, mask=j < tl.where(t > 0, J, 0), other=0.0))
    logit = logit_of(weight, benefit, volume, alone, use, act, scale, b, j, f, J, rate, F, KIND, SCALE)
    tl.store(to + J, logit, mask=j < J)
    tl.store(to + 2 * J, constant_of(weight, logit, volume, f, F, KIND), mask=j < J)
    store_three(statistics + (t * B + b).to(tl.int64) * (3 * J * F) + j * F + f, mean, variance, rest, inside, J, F)
    if LAST:
        at = b * (J * F) + j * F + f
        tl.store(means + at, centre, mask=inside)
        tl.store(spreads + at, spread, mask=inside)
        tl.store(logits + b * J + j, logit, mask=j < J)


@kernel("b0", "B", "I", "J", "NCH", "b_i")
def begin(votes, gate, use, other, rows, few, b0, B, I, J, NCH, b_i, F: tl.constexpr, CT: tl.constexpr,
          IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, EACH: tl.constexpr, KIND: tl.constexpr):  # fmt: skip
    """The first iteration, in which children belong to all parents alike: columns (j,f) have nothing to do with one
    another, so none is padded. A program keeps CT of them, and what JT of the parents weigh."""
    in_turn()
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    c = tile * CT + tl.arange(0, CT)[None, :]
    j = tile * JT + tl.arange(0, JT)[None, :]
    inside = c < J * F
    weight, benefit = 0.0, tl.zeros((1, JT), tl.float32)
    mean = tl.zeros((1, CT), tl.float32)
    rest = tl.zeros((1, CT), tl.float32)
    square = tl.zeros((1, CT), tl.float32)
    for chunk in tl.range(NCH, num_stages=NS):
        i = (split * NCH + chunk) * IC + tl.arange(0, IC)[:, None]
        V = tl.load(votes + ((b - b0) * I + i).to(tl.int64) * (J * F) + c, mask=(i < I) & inside, other=0.0)
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        x = g / J
        if KIND == HEINSEN:
            benefit += tl.sum(gained(use, other, x, g, i, j, I, J, b_i), axis=0, keep_dims=True)
        w = tl.sum(tl.sum(x, axis=1), axis=0)  # a number: threads that hold columns need not ask others for it
        weight, mean, rest, square = add_children(V, x, w, weight, mean, rest, square, EACH)
    to = few + (split * B + b) * (2 * J) + j
    tl.store(to, weight + tl.zeros((1, JT), tl.float32), mask=j < J)
    tl.store(to + J, benefit, mask=j < J)
    store_three(rows + (split * B + b) * (3 * J * F) + c, mean, rest, square, inside, J, F)


@kernel("b0", "B", "I", "J", "NCH", "t", "eps", "b_i")
def route(votes, gate, use, other, statistics, brief, R, rows, few, b0, B, I, J, NCH, t, eps, b_i, F: tl.constexpr,
          FP: tl.constexpr, IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, EACH: tl.constexpr,
          KIND: tl.constexpr):  # fmt: skip
    """Iteration t > 0: a program walks over a share of a sample's children, NCH tiles of them, and keeps their moments.

    Children belong to parents by shares R [b,i,j] of what those were after the last iteration.
    """
    in_turn()
    b, split = b0 + tl.program_id(0), tl.program_id(1)
    j, n, f = places(JT, IC, FP)
    valid = j < J
    centre, twice = density_of(statistics, brief, b, j, f, B, J, t - 1, eps, F, KIND)
    precision = 0.5 * twice
    constant = tl.load(brief + ((t - 1) * B + b).to(tl.int64) * (3 * J) + 2 * J + j, mask=valid, other=-float("inf"))
    constant = nearer_zero(constant)
    weight, benefit, mean, rest, square = nothing(JT, FP)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        V = tile_of_votes(votes, b - b0, first, 0, I, J, F, FP, IC, JT)[0]
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        d = V - centre
        log_density = tl.sum(tl.fma(precision * d, d, 0.0), axis=2, keep_dims=True) + constant
        # A child so far from all parents that no density is left belongs to all alike, as after any other tie.
        log_density = tl.where(valid & (log_density < LOWEST), LOWEST, log_density)
        share = exponential(log_density - tl.max(log_density, axis=1, keep_dims=True))
        share = tl.fma(share, inverse_of(tl.sum(share, axis=1, keep_dims=True)), 0.0)
        tl.store(R + (b * I + i) * J + j, share, mask=(i < I) & valid)
        x = tl.fma(g, share, 0.0)
        if KIND == HEINSEN:
            benefit += tl.sum(gained(use, other, x, g, i, j, I, J, b_i, False), axis=0, keep_dims=True)
        total = tl.sum(x, axis=0, keep_dims=True)
        weight, mean, rest, square = add_children(V, x, total, weight, mean, rest, square, EACH)
    leave_share(rows, few, split * B + b, j, f, J, weight, benefit, mean, rest, square, F)


@kernel("b0", "B", "I", "J", "NCH", "w_b", "w_i", "w_j")
def weigh(votes, weights, beta, rows, few, b0, B, I, J, NCH, w_b, w_i, w_j, F: tl.constexpr, FP: tl.constexpr,
          IC: tl.constexpr, JT: tl.constexpr, NS: tl.constexpr, BETA: tl.constexpr):  # fmt: skip
    """A program walks over a share of the children and keeps moments of a tile of parents.

    Weights [b,i,j] are given, of any strides; with BETA, [i,j], it sums weights * beta too.
    """
    in_turn()
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    weight, benefit, mean, rest, square = nothing(JT, FP)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        V = tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, IC, JT)[0]
        x = tl.load(weights + b * w_b + i * w_i + j * w_j, mask=(i < I) & (j < J), other=0.0)
        if BETA:
            gained = x * tl.load(beta + i * J + j, mask=(i < I) & (j < J), other=0.0)
            benefit += tl.sum(gained, axis=0, keep_dims=True)
        weight, mean, rest, square = add_children(V, x, tl.sum(x, axis=0, keep_dims=True), weight, mean, rest, square)
    leave_share(rows, few, split * B + b, j, f, J, weight, benefit, mean, rest, square, F)


@triton.jit
def gaussian_of(mean, variance, b, j, f, J, F: tl.constexpr):
    """Mean and variance of parents, one beyond the pose."""
    inside = (j < J) & (f < F)
    at = b * (J * F) + j * F + f
    return tl.load(mean + at, mask=inside, other=0.0), tl.load(variance + at, mask=inside, other=1.0)


@kernel("b0", "I", "J", "NCH")
def density(votes, mean, variance, out, b0, I, J, NCH, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
            JT: tl.constexpr, NS: tl.constexpr):  # fmt: skip
    """Log-densities [b,i,j]: a program holds a tile of parents, walks over a share of the children, keeps nothing."""
    in_turn()
    b, split, tile = b0 + tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j, n, f = places(JT, IC, FP)
    j += tile * JT
    centre, spread = gaussian_of(mean, variance, b, j, f, J, F)
    square = tl.div_rn(-0.5, spread)
    constant = -0.5 * tl.sum(tl.log(spread), axis=2, keep_dims=True)
    for chunk in tl.range(NCH, num_stages=NS):
        first = (split * NCH + chunk) * IC
        i = first + n
        d = tile_of_votes(votes, b - b0, first, tile, I, J, F, FP, IC, JT)[0] - centre
        found = tl.sum(tl.fma(square * d, d, 0.0), axis=2, keep_dims=True) + constant
        tl.store(out + (b * I + i) * J + j, found, mask=(i < I) & (j < J))
