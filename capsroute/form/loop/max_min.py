"""Max-min normalisation in kernels: what it makes of a logit once the largest and the smallest of a child are known."""

import triton
import triton.language as tl

SHORT = tl.constexpr(2.0**-100)  # a range of logits whose inverse may leave float32


@triton.jit
def _stretch(high, low):
    """Two factors that together are one over the range, of which one alone could overflow.

    The latter is zero where all logits are equal, as the gradient is there.
    """
    equal = high == low
    lift = tl.where((high - low < SHORT) & (high != low), 1.0 / SHORT, 1.0)
    return lift, tl.where(equal, 0.0, 1.0 / tl.where(equal, 1.0, (high - low) * lift))


@triton.jit
def extremes(logits, real, axis):
    """The largest and the smallest logit of the real ones, over an axis, which is kept: one reduction for both.

    A maximum passes over what is no number: as the largest and the smallest there are it is found, and `exposed`.
    """
    number = logits == logits
    highest = tl.where(real, tl.where(number, logits, float("inf")), -float("inf"))
    lowest = tl.where(real, tl.where(number, -logits, float("inf")), -float("inf"))
    high, low = tl.split(tl.max(tl.join(highest, lowest), axis=axis, keep_dims=True))
    return exposed(high, -low)


@triton.jit
def exposed(high, low):
    """The largest and the smallest logit, or no numbers: of an infinite range nothing is left, as in the plain form."""
    none = (high - low) * 0.0
    return high + none, low + none


@triton.jit
def stretched(logits, high, low, lower, upper):
    """The coefficients; all logits that are equal are the largest."""
    lift, inverse = _stretch(high, low)
    return lower + tl.where(logits == high, 1.0, (logits - low) * lift * inverse) * (upper - lower)


@triton.jit
def parts(logits, g, high, low, real):
    """What sums over parents are made of, from the gradient g of the coefficients: what reaches the largest logit, from
    others and from itself, and how many are the largest; the same three of the smallest.

    Its own part is kept apart, since it cancels: of one parent that is the largest alone nothing is left of it, and a
    sum with it would have lost what is small beside it.
    """
    lift, inverse = _stretch(high, low)
    y = (logits - low) * lift * inverse
    highs = tl.where((logits == high) & real, 1.0, 0.0)
    lows = tl.where((logits == low) & real, 1.0, 0.0)
    at_high, at_low = highs * g, lows * g
    inner = g - at_high - at_low
    return inner * y, at_high, highs, inner * (1.0 - y), at_low, lows


@triton.jit
def summed(x, axis):
    """The sums of `parts` over an axis, which is kept: one reduction, in which warps wait for each other once."""
    of_high, of_low, counts = tl.join(x[0], x[1]), tl.join(x[3], x[4]), tl.join(x[2], x[5])
    found = tl.sum(tl.join(tl.join(of_high, of_low), tl.join(counts, counts)), axis=axis, keep_dims=True)
    either, counts = tl.split(found)
    of_high, of_low = tl.split(either)
    to_high, at_high = tl.split(of_high)
    to_low, at_low = tl.split(of_low)
    counts, _ = tl.split(counts)
    highs, lows = tl.split(counts)
    return to_high, at_high, highs, to_low, at_low, lows


@triton.jit
def added(x, y):
    """Two of them together."""
    found = ()
    for n in tl.static_range(6):
        found = found + (x[n] + y[n],)
    return found


@triton.jit
def shares(sums):
    """What each of the largest gets, and each of the smallest: sums of `parts`, shared evenly among equals."""
    of_high = tl.where(sums[2] == 1, 1.0, 1.0 / sums[2])
    of_low = tl.where(sums[5] == 1, 1.0, 1.0 / sums[5])
    return sums[0] * of_high, sums[1] * of_high, sums[3] * of_low, sums[4] * of_low


@triton.jit
def slope(logits, g, high, low, each, lower, upper):
    """The gradient of the logits, from that of the coefficients and the `shares`."""
    lift, inverse = _stretch(high, low)
    of_high, of_low = (g - each[1]) - each[0], (g - each[3]) - each[2]
    g = tl.where(logits == high, of_high, tl.where(logits == low, of_low, g))
    return g * (inverse * (upper - lower)) * lift
