"""An iteration for more parents than one program holds: agreement, normalisation and weighted sum, a kernel each.

What passes between them is a plane [i,j,b] of logits or coefficients, which the derivative wants anyway. Agreement and
sum are those of `contractions.kernels`; the normalisation, here, holds a child and BN samples, and all parents
(HELD), or walks over them JC at a time, with a softmax that is kept up as it goes.
"""

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel
from capsroute.form.loop.max_min import added, extremes, parts, shares, slope, stretched, summed
from capsroute.form.loop.walks import bounded, normalised, or_one, reached, slopes, unmoved
from capsroute.form.tiles import exponential


@triton.jit
def _high_and_low(x, J, B, at, b, JC, BN):
    """The largest and the smallest logit of each sample, over parents: [1, BN] each."""
    high = tl.full((1, BN), -float("inf"), tl.float32)
    low = tl.full((1, BN), float("inf"), tl.float32)
    for first in range(0, J, JC):
        j = first + tl.arange(0, JC)[:, None]
        v = tl.load(x + at + j * B, mask=(j < J) & (b < B), other=0.0)
        largest, smallest = extremes(v, j < J, 0)
        high = tl.maximum(high, largest, propagate_nan=tl.PropagateNan.ALL)
        low = tl.minimum(low, smallest, propagate_nan=tl.PropagateNan.ALL)
    return high, low


@kernel("plane", "lower", "upper")
def normalise_plane(x, c, B, I, J, plane, lower, upper, SOFTMAX: tl.constexpr, HELD: tl.constexpr, JC: tl.constexpr,
                    BN: tl.constexpr):  # fmt: skip
    """A program holds one child and BN samples, and all parents if HELD; else it walks over them twice, JC at a time.

    c[plane,i,j,b] = softmax or max-min over j of x[i,j,b]; c may be x.
    """
    in_turn()
    i, b = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    at = i * (J * B) + b
    c += plane * (I * J * B)
    if HELD:
        j = tl.arange(0, JC)[:, None]
        mask = (j < J) & (b < B)
        v = bounded(tl.load(x + at + j * B, mask=mask, other=0.0), SOFTMAX)
        tl.store(c + at + j * B, normalised(v, J, SOFTMAX, lower, upper, JC, 0), mask=mask)
    elif SOFTMAX:
        high = tl.full((1, BN), -float("inf"), tl.float32)
        total = tl.zeros((1, BN), tl.float32)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            v = bounded(tl.load(x + at + j * B, mask=(j < J) & (b < B), other=0.0), SOFTMAX)
            v = tl.where(j < J, v, -float("inf"))
            higher = tl.maximum(high, tl.max(v, axis=0, keep_dims=True))
            e = exponential(v - reached(higher, SOFTMAX))
            total = total * exponential(high - reached(higher, SOFTMAX)) + tl.sum(e, axis=0, keep_dims=True)
            high = higher
        high, inverse = reached(high, SOFTMAX), 1.0 / or_one(total, SOFTMAX)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            mask = (j < J) & (b < B)
            v = bounded(tl.load(x + at + j * B, mask=mask, other=0.0), SOFTMAX)
            tl.store(c + at + j * B, exponential(v - high) * inverse, mask=mask)
    else:
        high, low = _high_and_low(x, J, B, at, b, JC, BN)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            mask = (j < J) & (b < B)
            v = tl.load(x + at + j * B, mask=mask, other=0.0)
            tl.store(c + at + j * B, stretched(v, high, low, lower, upper), mask=mask)


@kernel("t", "plane", "lower", "upper", "p_i")
def normalise_plane_backward(x, c, g, out, prior, B, I, J, t, plane, lower, upper, p_i, SOFTMAX: tl.constexpr,
                             STORE: tl.constexpr, HELD: tl.constexpr, JC: tl.constexpr, BN: tl.constexpr):  # fmt: skip
    """As `normalise_plane`: out[t,i,j,b] = gradient by the logits, from g[i,j,b], that of the coefficients.

    Softmax needs its coefficients c[plane,i,j,b], and the prior [i,j], if logits have one; max-min its logits x[i,j,b]
    (and STOREs c).
    """
    in_turn()
    i, b = tl.program_id(0), tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    at = i * (J * B) + b
    c += plane * (I * J * B)
    out += t * (I * J * B)
    if HELD:
        j = tl.arange(0, JC)[:, None]
        mask = (j < J) & (b < B)
        by_c = tl.load(g + at + j * B, mask=mask, other=0.0)
        v = tl.load((c if SOFTMAX else x) + at + j * B, mask=mask, other=0.0).to(tl.float32)
        found = unmoved(slopes(v, v, by_c, J, SOFTMAX, lower, upper, JC, 0), prior, i * p_i + j, mask, SOFTMAX)
        tl.store(out + at + j * B, found, mask=mask)
        if STORE:
            tl.store(c + at + j * B, normalised(v, J, SOFTMAX, lower, upper, JC, 0), mask=mask)
    elif SOFTMAX:
        mean = tl.zeros((1, BN), tl.float32)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            mask = (j < J) & (b < B)
            weight = tl.load(c + at + j * B, mask=mask, other=0.0).to(tl.float32)
            mean += tl.sum(weight * tl.load(g + at + j * B, mask=mask, other=0.0), axis=0, keep_dims=True)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            mask = (j < J) & (b < B)
            weight = tl.load(c + at + j * B, mask=mask, other=0.0).to(tl.float32)
            found = weight * (tl.load(g + at + j * B, mask=mask, other=0.0) - mean)
            tl.store(out + at + j * B, unmoved(found, prior, i * p_i + j, mask, SOFTMAX), mask=mask)
    else:
        high, low = _high_and_low(x, J, B, at, b, JC, BN)
        none = tl.zeros((1, BN), tl.float32)
        sums = (none, none, none, none, none, none)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            mask = (j < J) & (b < B)
            v = tl.load(x + at + j * B, mask=mask, other=0.0)
            more = parts(v, tl.load(g + at + j * B, mask=mask, other=0.0), high, low, j < J)
            sums = added(sums, summed(more, 0))
        each = shares(sums)
        for first in range(0, J, JC):
            j = first + tl.arange(0, JC)[:, None]
            mask = (j < J) & (b < B)
            v = tl.load(x + at + j * B, mask=mask, other=0.0)
            by_c = tl.load(g + at + j * B, mask=mask, other=0.0)
            tl.store(out + at + j * B, slope(v, by_c, high, low, each, lower, upper), mask=mask)
            if STORE:
                tl.store(c + at + j * B, stretched(v, high, low, lower, upper), mask=mask)
