"""What parents of variational Bayes routing are by their weight N, and the derivative of that.

See `routing/variational_bayes`. With kappa = 1 + N, nu = F + 1 + N and F numbers in a pose a log-density has beside its
square

    digamma(kappa) - F / (2 kappa) + rest / 2 - volume / 2,   rest = sum_f [digamma((nu - f) / 2) - log(nu / 2)]

less what all parents have alike, and a parent's score is beta_activate - beta_use - part * entropy, where

    part = exp(digamma(kappa) - digamma(sum of kappa)),   entropy = [F (1 + log 2 pi) + volume - rest] / 2

The sum of all kappa is as large after every iteration: parents share their children out, and of equal shares each
has 1 / J of all weight.
"""

import triton
import triton.language as tl

UNIT = tl.constexpr(2.8378770664093453)  # 1 + log 2 pi
STEPS = tl.constexpr(6)  # from where a series is exact in float32 down to one


@triton.jit
def _digamma_over(x, unit):
    """digamma(x) - log(unit), x >= 1, without a difference of large numbers where both are large."""
    y = x + STEPS
    steps = 1 / x
    for n in tl.static_range(1, STEPS):
        steps += 1 / (x + n)
    inverse = 1 / y
    square = inverse * inverse
    series = square * (1 / 12 - square * (1 / 120 - square / 252))
    return tl.log(tl.div_rn(y, unit)) - (steps + 0.5 * inverse + series)


@triton.jit
def _trigamma(x):
    """The derivative of digamma at x >= 1."""
    inverse = 1 / (x + STEPS)
    square = inverse * inverse
    # All that is small beside one over a large x is added to it at once.
    rest = 0.5 * square + inverse * square * (1 / 6 - square * (1 / 30 - square / 42))
    for n in tl.static_range(STEPS - 1, -1, -1):
        near = 1 / (x + n)
        rest += near * near
    return inverse + rest


@triton.jit
def evidence_of(weight, f, F: tl.constexpr):
    """digamma(kappa) and the rest [1,JT,1]."""
    freedom = F + 1 + weight
    each = _digamma_over(tl.maximum(0.5 * (freedom - f), 1.0), 0.5 * freedom)
    return _digamma_over(1 + weight, 1.0), tl.sum(tl.where(f < F, each, 0.0), axis=2, keep_dims=True)


@triton.jit
def _part_and_entropy(share, rest, volume, alone, J, F: tl.constexpr):
    """Of a parent, where the equal shares of the first iteration gave each as much weight as `alone`."""
    part = tl.exp(share - _digamma_over(J + J * alone, 1.0))
    return part, 0.5 * (F * UNIT + volume - rest)


@triton.jit
def score_of(weight, volume, alone, use, act, f, j, J, F: tl.constexpr):
    """Scores of parents [1,JT,1]."""
    share, rest = evidence_of(weight, f, F)
    part, entropy = _part_and_entropy(share, rest, volume, alone, J, F)
    acts = tl.load(act + j, mask=j < J, other=0.0).to(tl.float32)
    return acts - (part * entropy + tl.load(use + j, mask=j < J, other=0.0).to(tl.float32))


@triton.jit
def constant_of_belief(weight, volume, f, F: tl.constexpr):
    """What a log-density has beside its square, but for what all parents have."""
    share, rest = evidence_of(weight, f, F)
    return share - tl.div_rn(0.5 * F, 1 + weight) + 0.5 * (rest - volume)


@triton.jit
def blame_belief(by_centre, by_spread, by_constant, by_score, mean, variance, weight, spread, volume, alone, inside, f,
                 J, F: tl.constexpr):  # fmt: skip
    """Gradients by mean, variance and weight of what is believed of a parent, and by the weight of all children.

    From those by the density's mean, its variance (that by its volume in it) and its constant, and by the score.
    """
    kappa, freedom = 1 + weight, F + 1 + weight
    share, rest = evidence_of(weight, f, F)
    part, entropy = _part_and_entropy(share, rest, volume, alone, J, F)
    each = 0.5 * _trigamma(tl.maximum(0.5 * (freedom - f), 1.0)) - tl.div_rn(1.0, freedom)
    by_rest = tl.sum(tl.where(f < F, each, 0.0), axis=2, keep_dims=True)
    by_share = _trigamma(kappa)
    by_entropy = -by_score * part
    by_weight = by_constant * (by_share + tl.div_rn(0.5 * F, kappa * kappa) + 0.5 * by_rest)
    by_weight += by_entropy * (entropy * by_share - 0.5 * by_rest)
    by_all = -by_entropy * entropy * _trigamma(J + J * alone)
    by_P = tl.div_rn(by_spread + tl.div_rn(0.5 * by_entropy, spread), freedom)
    near = tl.div_rn(mean, kappa)
    grown = tl.div_rn(by_centre, kappa) * near + by_P * (variance + near * near - spread)
    by_weight += tl.sum(tl.where(inside, grown, 0.0), axis=2, keep_dims=True)
    by_mean = tl.div_rn(weight, kappa) * (by_centre + 2 * by_P * mean)
    return by_mean, by_P * weight, by_weight, by_all
