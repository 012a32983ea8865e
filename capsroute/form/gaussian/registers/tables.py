"""What parents bring to a Gaussian pass, [b, rows, j], made by one small kernel each instead of a dozen operators; and
what the programs of a pass leave, put together in a fixed order.

Poses [b,j,a,o] are read as rows [b,f,j] of any strides. Quotients are rounded once, as everywhere: gradients by mean
and by votes, which cancel where variances are tight, must divide by the same number.
"""

import triton
import triton.language as tl

from capsroute.form.gaussian.plain import TINY
from capsroute.form.launch import in_turn, kernel

NONE = tl.constexpr(TINY)  # a sum of weights that is none


@triton.jit
def _given(pointer, b, f, j, s_b, s_f, s_j, mask, GIVEN: tl.constexpr):
    """Rows of a gradient; zeros for one that is not given."""
    if GIVEN:
        return tl.load(pointer + b * s_b + f * s_f + j * s_j, mask=mask, other=0.0)
    else:
        return tl.zeros(mask.shape, tl.float32)


@kernel("J")
def density_table(mean, variance, prior, out, J, m_b, m_f, m_j, v_b, v_f, v_j, F: tl.constexpr, FP: tl.constexpr,
                  JT: tl.constexpr):  # fmt: skip
    """The log-density plus prior[b,j] as a quadratic: centre, square, constant. A program makes those of JT parents."""
    in_turn()
    b, tile = tl.program_id(0), tl.program_id(1)
    f, j = tl.arange(0, FP)[:, None], tile * JT + tl.arange(0, JT)[None, :]
    mask = (f < F) & (j < J)
    centre = tl.load(mean + b * m_b + f * m_f + j * m_j, mask=mask, other=0.0)
    spread = tl.load(variance + b * v_b + f * v_f + j * v_j, mask=mask, other=1.0)
    to = out + b * ((2 * F + 1) * J) + j
    tl.store(to + f * J, centre, mask=mask)
    tl.store(to + (F + f) * J, tl.div_rn(-0.5, spread), mask=mask)
    constant = -0.5 * tl.sum(tl.log(spread), axis=0, keep_dims=True)
    tl.store(to + 2 * F * J, constant + tl.load(prior + b * J + j, mask=j < J, other=0.0), mask=j < J)


@kernel("J", "eps")
def moments_table(g_mean, g_variance, g_total, g_dots, mean, variance, total, rests, out, J, eps, m_b, m_f, m_j, v_b,
                  v_f, v_j, F: tl.constexpr, FP: tl.constexpr, JT: tl.constexpr, MEAN: tl.constexpr,
                  VARIANCE: tl.constexpr, TOTAL: tl.constexpr, BETA: tl.constexpr, DOTS: tl.constexpr):  # fmt: skip
    """The gradient by weights as a quadratic: centre, square, constant, linear and, with betas, that of their sums.

    A program makes those of JT parents. Gradients of mean, variance, total and dots are zero where they are not given.
    """
    in_turn()
    b, tile = tl.program_id(0), tl.program_id(1)
    f, j = tl.arange(0, FP)[:, None], tile * JT + tl.arange(0, JT)[None, :]
    mask = (f < F) & (j < J)
    centre = tl.load(mean + (b * F + f) * J + j, mask=mask, other=0.0)
    spread = tl.load(variance + (b * F + f) * J + j, mask=mask, other=0.0)
    divisor = tl.load(total + b * J + j, mask=j < J, other=1.0) + eps
    divisor = tl.where(divisor < NONE, 1.0, divisor)
    square = tl.div_rn(_given(g_variance, b, f, j, v_b, v_f, v_j, mask, VARIANCE), divisor)
    # With eps, and with rounding, the mean is not quite the centre of mass, so the variance has a slope there.
    rest = tl.load(rests + (b * F + f) * J + j, mask=mask, other=0.0)
    linear = tl.div_rn(_given(g_mean, b, f, j, m_b, m_f, m_j, mask, MEAN) - 2 * square * rest, divisor)
    constant = -tl.sum(square * spread, axis=0, keep_dims=True)
    if TOTAL:
        constant += tl.load(g_total + b * J + j, mask=j < J, other=0.0)
    to = out + b * ((3 * F + 1 + (1 if BETA else 0)) * J) + j
    tl.store(to + f * J, centre, mask=mask)
    tl.store(to + (F + f) * J, square, mask=mask)
    tl.store(to + 2 * F * J, constant, mask=j < J)
    tl.store(to + (2 * F + 1 + f) * J, linear, mask=mask)
    if BETA:
        tl.store(to + (3 * F + 1) * J, _given(g_dots, b, 0, j, J, 0, 1, j < J, DOTS), mask=j < J)


@kernel("B", "J", "S")
def parents_gradient(part, variance, by_mean, by_variance, by_prior, B, J, S, v_b, v_f, v_j, F: tl.constexpr,
                     SP: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """Gradients by prior [b,j], mean and variance [b,f,j] of a density, from S parts of slope * (1, pull, pull d).

    A program sums the parts of one f and JT parents, SP of them at a time.
    """
    in_turn()
    b, f, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    j = tile * JT + tl.arange(0, JT)[None, :]
    table = part + b * ((1 + 2 * F) * J) + j
    total = tl.zeros((1, JT), tl.float32)
    first = tl.zeros((1, JT), tl.float32)
    second = tl.zeros((1, JT), tl.float32)
    for begin in range(0, S, SP):
        s = begin + tl.arange(0, SP)[:, None]
        at, mask = table + s * (B * (1 + 2 * F) * J), (s < S) & (j < J)
        total += tl.sum(tl.load(at, mask=mask, other=0.0), axis=0, keep_dims=True)
        first += tl.sum(tl.load(at + (1 + f) * J, mask=mask, other=0.0), axis=0, keep_dims=True)
        second += tl.sum(tl.load(at + (1 + F + f) * J, mask=mask, other=0.0), axis=0, keep_dims=True)
    precision = tl.div_rn(1.0, tl.load(variance + b * v_b + f * v_f + j * v_j, mask=j < J, other=1.0))
    tl.store(by_mean + (b * F + f) * J + j, -first, mask=j < J)
    tl.store(by_variance + (b * F + f) * J + j, -0.5 * precision * (second + total), mask=j < J)
    if f == 0:
        tl.store(by_prior + b * J + j, total, mask=j < J)


@kernel("B", "J", "S", "eps")
def merge_moments(part, means, variances, totals, dots, rests, B, J, S, eps, F: tl.constexpr, BETA: tl.constexpr,
                  SP: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """Mean and variance [b,f,j] of all children from those of S parts; divided by (sum of weights + eps).

    A program puts the parts of one f and JT parents together, SP of them at a time. Rests [b,f,j] are the sums of
    weights times distances from the mean, rounded as it is: what the variance's slope there is made of.
    """
    in_turn()
    b, f, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    N: tl.constexpr = 2 if BETA else 1
    size = B * (N + 3 * F) * J
    j = tile * JT + tl.arange(0, JT)[None, :]
    table = part + b * ((N + 3 * F) * J) + j
    weight = tl.zeros((1, JT), tl.float32)
    moment = tl.zeros((1, JT), tl.float32)
    benefit = tl.zeros((1, JT), tl.float32)
    for begin in range(0, S, SP):
        s = begin + tl.arange(0, SP)[:, None]
        at, mask = table + s * size, (s < S) & (j < J)
        w = tl.load(at, mask=mask, other=0.0)
        weight += tl.sum(w, axis=0, keep_dims=True)
        rest = tl.load(at + (N + F + f) * J, mask=mask, other=0.0)
        moment += tl.sum(w * tl.load(at + (N + f) * J, mask=mask, other=0.0) + rest, axis=0, keep_dims=True)
        if BETA:
            benefit += tl.sum(tl.load(at + J, mask=mask, other=0.0), axis=0, keep_dims=True)
    centre = tl.div_rn(moment, tl.where(weight < NONE, 1.0, weight))
    square = tl.zeros((1, JT), tl.float32)
    residue = tl.zeros((1, JT), tl.float32)
    for begin in range(0, S, SP):
        s = begin + tl.arange(0, SP)[:, None]
        at, mask = table + s * size, (s < S) & (j < J)
        d = tl.load(at + (N + f) * J, mask=mask, other=0.0) - centre
        rest = tl.load(at + (N + F + f) * J, mask=mask, other=0.0)
        own = tl.load(at + (N + 2 * F + f) * J, mask=mask, other=0.0)
        w = tl.load(at, mask=mask, other=0.0)
        square += tl.sum(own + d * (2 * rest + w * d), axis=0, keep_dims=True)
        residue += tl.sum(rest + w * d, axis=0, keep_dims=True)
    divisor = weight + eps
    divisor = tl.where(divisor < NONE, 1.0, divisor)
    # With eps the divisor is not quite the total weight, so the mean is not quite the centre of mass. It is one
    # quotient, rounded once: where variances are tight every rounding of the mean shows in the densities.
    mean = tl.div_rn(moment, divisor)
    off = centre * tl.div_rn(eps, divisor)
    variance = tl.div_rn(square + weight * off * off, divisor)
    tl.store(means + (b * F + f) * J + j, mean, mask=j < J)
    tl.store(variances + (b * F + f) * J + j, variance, mask=j < J)
    tl.store(rests + (b * F + f) * J + j, residue + weight * (centre - mean), mask=j < J)
    if f == 0:
        tl.store(totals + b * J + j, weight, mask=j < J)
        if BETA:
            tl.store(dots + b * J + j, benefit, mask=j < J)
