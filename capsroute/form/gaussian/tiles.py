"""Pieces that kernels over stored votes [b,i,j,f] share: tiles [IC, JT, FP] of them, moments, Gaussians.

Rests are weights times distances from the mean, zero but for the mean's rounding. What a program leaves of its children
is a share; shares are put together by `believe` and `blame`:

    rows [split, b, (mean, rest, square), j, f]         few [split, b, (weight, benefit), j]        of moments
    rows [split, b, (pull, pull d), j, f]               few [split, b, j]                           of gradients

where pull is the slope of a log-density by the vote, times the gradient of that log-density.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.plain import KINDS, TINY

LOWEST = tl.constexpr(-3e38)  # a log-density that does not overflow
NONE = tl.constexpr(TINY)  # a sum of weights that is none
EM, HEINSEN, BAYES = (tl.constexpr(kind) for kind in KINDS)
SINGLE = tl.constexpr(8)  # children of a tile whose betas are read one child at a time


@triton.jit
def places(JT: tl.constexpr, IC: tl.constexpr, FP: tl.constexpr):
    """Parents, children and numbers of a pose in a tile."""
    j, n, f = tl.arange(0, JT), tl.arange(0, IC), tl.arange(0, FP)
    return j[None, :, None], n[:, None, None], f[None, None, :]


@triton.jit
def tile_of_votes(votes, row, first, tile, I, J, F: tl.constexpr, FP: tl.constexpr, IC: tl.constexpr,
                  JT: tl.constexpr):  # fmt: skip
    """Votes of IC children to a tile of parents [IC, JT, FP]; where they lie, and which are there: [IC, JT * FP].

    Parents and poses are read as one axis: lanes then take those, and a thread holds the same of every child.
    """
    n, c = tl.arange(0, IC)[:, None], tl.arange(0, JT * FP)[None, :]
    if F == FP:
        at = tile * (JT * FP) + c
        mask = at < J * F
    else:
        at = (tile * JT + c // FP) * F + c % FP
        mask = (tile * JT + c // FP < J) & (c % FP < F)
    # One number of 64 bits for the tile, and of 32 what is the same in all of them.
    at = votes + (row * I + first).to(tl.int64) * (J * F) + (n * (J * F) + at)
    mask = mask & (n < I - first)
    return tl.reshape(tl.load(at, mask=mask, other=0.0), (IC, JT, FP)), at, mask


@triton.jit
def beta_of(beta, i, j, I, J, b_i):
    """Betas of a tile [IC,JT,1], of any dtype, or (b_i = 0) what all children share."""
    return tl.load(beta + i * b_i + j, mask=(i < I) & (j < J), other=0.0).to(tl.float32)


@triton.jit
def gained(use, other, x, g, i, j, I, J, b_i, FIRST: tl.constexpr = True):
    """Benefits of children, of whose weights g these are used, less what ignoring the rest costs [IC,JT,1].

    Of an infinite cost they are no number, as in the plain form, which has it as a benefit too: the FIRST iteration
    says so, and those behind it know.
    """
    pays, costs = beta_of(use, i, j, I, J, b_i), beta_of(other, i, j, I, J, b_i)
    if FIRST:
        costs += costs - costs
    return x * pays - (g - x) * costs


@triton.jit
def betas_of(use, other, first, n, j, I, J, b_i, KIND: tl.constexpr):
    """Both betas of a tile of children first + n; where parameters are of parents alone there are none."""
    if KIND == HEINSEN:
        return beta_of(use, first + n, j, I, J, b_i), beta_of(other, first + n, j, I, J, b_i)
    else:
        return 0.0, 0.0


@triton.jit
def betas_of_each(use, other, first, n, j, I, J, b_i, IC: tl.constexpr, KIND: tl.constexpr):
    """The same where the rest of a loop is made of them. Those in half precision are read one child at a time.

    No pipeline takes half precision, and loads of a whole tile that none takes decide where all lies that is made of
    them: votes went through shared memory to get there, and walks back took up to eight times as long. Loads of so few
    numbers are made where they are needed.
    """
    WIDTHS: tl.constexpr = use.dtype.element_ty.primitive_bitwidth + other.dtype.element_ty.primitive_bitwidth
    if KIND == HEINSEN and IC <= SINGLE and WIDTHS < 64:
        i, none = first + tl.zeros((1, 1, 1), tl.int32), tl.zeros(n.shape, tl.float32)
        pays, costs = beta_of(use, i, j, I, J, b_i) + none, beta_of(other, i, j, I, J, b_i) + none
        for c in tl.static_range(1, IC):
            pays = tl.where(n == c, beta_of(use, i + c, j, I, J, b_i), pays)
            costs = tl.where(n == c, beta_of(other, i + c, j, I, J, b_i), costs)
        return pays, costs
    else:
        return betas_of(use, other, first, n, j, I, J, b_i, KIND)


@triton.jit
def nothing(JT: tl.constexpr, FP: tl.constexpr):
    """Moments of no children: weight, benefit [1,JT,1], mean, rest, square [1,JT,FP]."""
    few, pose = tl.zeros((1, JT, 1), tl.float32), tl.zeros((1, JT, FP), tl.float32)
    return few, few, pose, pose, pose


@triton.jit
def _inverse(weight):
    """One over a sum of weights, zero for next to none: a mean need not be exact where its rest is kept."""
    return tl.where(weight < NONE, 0.0, 1.0 / tl.maximum(weight, NONE))


@triton.jit
def inverse_of(total):
    """One over the sum of a child's exponentials, of which the largest is one: off by a last digit at most, and exact
    for one. Rounded in two steps, which branch nowhere: what follows need not wait for it, as it does for a division.
    """
    near = 1.0 / total
    return tl.fma(near, tl.fma(-total, near, 1.0), near)


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
def _product(x, y, EACH: tl.constexpr):
    """Rounded before it is summed over lanes; a sum that a thread makes alone may take it as it is."""
    if EACH:
        return x * y
    else:
        return tl.fma(x, y, 0.0)


@triton.jit
def add_children(V, x, w, weight, mean, rest, square, EACH: tl.constexpr = False):
    """Moments with the children of a tile [IC,JT,FP] added, whose weights are x [IC,JT,1], in all w [1,JT,1].

    Those of a tile are taken about the tile's own mean, so that no square is a difference of larger ones. Products are
    rounded before they are summed, weights too where they are products: one that is fused into a sum over lanes is
    rounded for all lanes but its own. Each lane would then have a mean of its own. EACH: a thread has all children of
    its columns, and nothing is summed over lanes.
    """
    m = tl.sum(_product(x, V, EACH), axis=0, keep_dims=True) * _inverse(w)
    # Again from there: where one child has all the weight, its distance from the mean is zero, not a rounding of both.
    m += tl.sum(_product(x, V - m, EACH), axis=0, keep_dims=True) * _inverse(w)
    d = V - m
    own = tl.fma(x, d, 0.0)
    r = tl.sum(own, axis=0, keep_dims=True)
    return _joined(weight, mean, rest, square, w, m, r, tl.sum(_product(own, d, EACH), axis=0, keep_dims=True))


@triton.jit
def add_each(V, x, weight, mean, rest, square, C: tl.constexpr):
    """As `add_children`, of C tiles, where each row of them keeps moments of its own [IC,JT,..]: no sum over lanes."""
    w = x[0]
    m = x[0] * V[0]
    for c in tl.static_range(1, C):
        w += x[c]
        m += x[c] * V[c]
    inverse = _inverse(w)
    m *= inverse
    more = x[0] * (V[0] - m)
    for c in tl.static_range(1, C):
        more += x[c] * (V[c] - m)
    m += more * inverse
    r = x[0] * (V[0] - m)
    q = r * (V[0] - m)
    for c in tl.static_range(1, C):
        own = x[c] * (V[c] - m)
        r += own
        q += own * (V[c] - m)
    return _joined(weight, mean, rest, square, w, m, r, q)


@triton.jit
def store_three(to, first, second, third, mask, J, F: tl.constexpr):
    """Rows of a table [.., 3, j, f], or [.., 3, j] where F is one."""
    tl.store(to, first, mask=mask)
    tl.store(to + J * F, second, mask=mask)
    tl.store(to + 2 * J * F, third, mask=mask)


@triton.jit
def leave_share(rows, few, at, j, f, J, weight, benefit, mean, rest, square, F: tl.constexpr):
    """A program's share of the moments."""
    tl.store(few + at * (2 * J) + j, weight, mask=j < J)
    tl.store(few + at * (2 * J) + J + j, benefit, mask=j < J)
    store_three(rows + at * (3 * J * F) + j * F + f, mean, rest, square, (j < J) & (f < F), J, F)


@triton.jit
def no_pulls(JT: tl.constexpr, FP: tl.constexpr):
    """Sums over no children of gradients [1,JT,1], of pulls, and of pulls times distances [1,JT,FP]."""
    pose = tl.zeros((1, JT, FP), tl.float32)
    return tl.zeros((1, JT, 1), tl.float32), pose, pose


@triton.jit
def add_pulls(d, pull, y, total, first, second):
    """Sums over children with those of a tile added: gradients y of log-densities, pulls, and pulls times distances."""
    total += tl.sum(y, axis=0, keep_dims=True)
    first += tl.sum(pull, axis=0, keep_dims=True)
    return total, first, second + tl.sum(pull * d, axis=0, keep_dims=True)


@triton.jit
def leave_pulls(rows, few, at, j, f, J, total, first, second, F: tl.constexpr):
    """A program's share of the sums over pulls."""
    tl.store(few + at * J + j, total, mask=j < J)
    to = rows + at * J * (2 * F) + j * F + f
    inside = (j < J) & (f < F)
    tl.store(to, first, mask=inside)
    tl.store(to + J * F, second, mask=inside)


@triton.jit
def believed(mean, variance, weight, inside, eps, F: tl.constexpr, KIND: tl.constexpr):
    """Mean and variance [1,JT,FP] of the density of a parent, from those of its votes, of which it has so many."""
    centre = mean
    if KIND == BAYES:  # a prior weighs as much as one vote, at zero
        centre = tl.fma(tl.div_rn(weight, 1 + weight), mean, 0.0)
        spread = tl.div_rn(1 + weight * variance + centre * mean, F + 1 + weight)
    elif KIND == HEINSEN:
        spread = variance + eps
    else:
        spread = tl.maximum(variance, eps, propagate_nan=tl.PropagateNan.ALL)
    return centre, tl.where(inside, spread, 1.0)


@triton.jit
def volume_of(spread):
    """The sum of the logarithms of a pose's variances [1,JT,1]."""
    return tl.sum(tl.log(spread), axis=2, keep_dims=True)


@triton.jit
def finite(x):
    """Numbers that overflowed as the largest ones there are: times shares that are next to nothing they are finite."""
    x = tl.maximum(x, LOWEST, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(x, -LOWEST, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def exact_volume_of(spread):
    """The same in two parts, their sum: a whole number of 512ths, exactly, and a rest.

    Spreads of 1e25 make sums of 200, which float32 rounds to 1e-5: what parents differ by would be off by as much.
    """
    bits = spread.to(tl.int32, bitcast=True)
    power = (bits + 0x004AFB0D) & 0x7F800000  # of two, the nearest by logarithms
    power = tl.minimum(tl.maximum(power, 0x00800000), 0x7E800000)  # whose inverse is one too
    near_one = spread * (0x7F000000 - power).to(tl.float32, bitcast=True)
    doublings = tl.sum(((power >> 23) - 127).to(tl.float32), axis=2, keep_dims=True)
    # log 2 is 355 / 512 less 2.1e-4.
    rest = tl.sum(tl.log(near_one), axis=2, keep_dims=True) - 2.12194440054690583e-4 * doublings
    return 0.693359375 * doublings, rest


@triton.jit
def nearer_zero(constant):
    """Constants of log-densities [1,JT,1], -inf of no parent, all moved alike: shares stay what they are.

    Spreads of 1e10 in a pose of 16 numbers make all of them -180: a square that is added there loses its last digits.
    """
    high = tl.max(constant, axis=1, keep_dims=True)
    low = tl.min(tl.where(constant == -float("inf"), float("inf"), constant), axis=1, keep_dims=True)
    return constant - offset_of(high, low)


@triton.jit
def offset_of(high, low):
    """How far the nearest to zero of numbers from `low` to `high` lies from it; zero where they lie on both sides."""
    return tl.maximum(tl.minimum(high, 0.0), LOWEST) + tl.minimum(tl.maximum(low, 0.0), -LOWEST)


@triton.jit
def density_of(statistics, brief, b, j, f, B, J, t, eps, F: tl.constexpr, KIND: tl.constexpr):
    """Mean and -1 / variance of the density of iteration t: twice the square of its logarithm."""
    inside = (j < J) & (f < F)
    at = statistics + (t * B + b).to(tl.int64) * (3 * J * F) + j * F + f
    mean = tl.load(at, mask=inside, other=0.0)
    variance, weight = tl.load(at + J * F, mask=inside, other=1.0), 0.0
    if KIND == BAYES:
        weight = tl.load(brief + (t * B + b).to(tl.int64) * (3 * J) + j, mask=j < J, other=0.0)
    centre, spread = believed(mean, variance, weight, inside, eps, F, KIND)
    return centre, tl.div_rn(-1.0, spread)
