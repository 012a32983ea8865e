"""What kernels make of weighted sums: squash, LayerNorm over the whole pose as inverted attention has it, or what
self-attention does.

Lengths and directions of rows, of which squash is made, are finite for every finite row, from 1e-38 to 1e38.
"""

import triton
import triton.language as tl

from capsroute.form.tiles import exponential

EPS = tl.constexpr(1e-5)


@triton.jit
def row_sum(v):
    """Of rows [rows, n], or of matrices [rows, a, n]: [rows, 1] or [rows, 1, 1].

    One axis after the other, not reshaped to one: a reshaped row may lie in threads that are not neighbours (0, 1, 8, 9
    of a warp), and Triton 3.6 shuffles as if they were, so that it adds up the wrong numbers.
    """
    if len(v.shape) == 3:
        v = tl.sum(v, axis=2, keep_dims=True)
    return tl.sum(v, axis=1, keep_dims=True)


@triton.jit
def row_max(v):
    """As `row_sum`."""
    if len(v.shape) == 3:
        v = tl.max(v, axis=2, keep_dims=True)
    return tl.max(v, axis=1, keep_dims=True)


@triton.jit
def _raised(v):
    """Rows divided by a power of two near their largest entry, their lengths then, and the power [rows, 1].

    Their squares neither overflow nor vanish. Powers are made of the exponent's bits, from 2^-127 to 2^127, so that
    their inverses are finite. Of a row with an infinite entry none is a number, as in the plain form.
    """
    exponent = row_max(tl.abs(v)).to(tl.int32, bitcast=True) & 0x7F800000
    power, inverse = tl.maximum(exponent, 0x00400000), tl.maximum(0x7F000000 - exponent, 0x00400000)
    inverse = tl.where(exponent == 0x7F800000, 0x7FC00000, inverse)
    v = v * inverse.to(tl.float32, bitcast=True)
    return v, tl.sqrt_rn(row_sum(v * v)), power.to(tl.float32, bitcast=True)


@triton.jit
def direction(v):
    """Rows of length one [rows, n], and their lengths [rows, 1]; of zero both are zero. So of matrices [rows, a, n]."""
    v, length, power = _raised(v)
    return tl.div_rn(v, tl.where(length == 0, 1.0, length)), length * power


@triton.jit
def squashed(v):
    """v |v| / (1 + |v|^2), which is the direction times n^2 / (1 + n^2), above one 1 / (1 + 1/n^2)."""
    v, length, power = _raised(v)
    norm = length * power
    small = tl.where(norm > 1, tl.div_rn(1.0, tl.maximum(norm, 1.0)), norm)
    most = tl.where(norm > 1, 1.0, small * small)
    return v * tl.div_rn(most, tl.where(length == 0, 1.0, length) * (1 + small * small))


@triton.jit
def squashed_gradient(v, g):
    """f g + f' n (unit . g) unit, with f = n / (1 + n^2); above one in terms of 1/n, which does not overflow."""
    v, length, power = _raised(v)
    norm = length * power
    unit = v * tl.div_rn(1.0, tl.where(length == 0, 1.0, length))
    # f is the same of n and of 1/n, and f' n changes its sign.
    small = tl.where(norm > 1, tl.div_rn(1.0, tl.maximum(norm, 1.0)), norm)
    inverse = tl.div_rn(1.0, 1 + small * small)
    factor = small * inverse
    slope = factor * (1 - small * small) * inverse
    return factor * g + tl.where(norm > 1, -slope, slope) * row_sum(g * unit) * unit


@triton.jit
def _normalised(s, mask, N):
    """Rows less their mean over their deviation, and one over the deviation; N numbers of a row are real."""
    v = tl.where(mask, s - row_sum(s) / N, 0.0)
    inverse = tl.rsqrt(row_sum(v * v) / N + EPS)
    return v * inverse, inverse


@triton.jit
def _saturation(n):
    """1 - exp(-n) over n, of lengths n: below a quarter by its series, where the difference loses digits."""
    small, large = tl.minimum(n, 0.25, propagate_nan=tl.PropagateNan.ALL), tl.maximum(n, 0.25)
    series = 1 - small / 2 * (1 - small / 3 * (1 - small / 4 * (1 - small / 5 * (1 - small / 6 * (1 - small / 7)))))
    return tl.where(n > 0.25, tl.div_rn(1 - exponential(-large), large), series)


@triton.jit
def exponentially_squashed(v):
    """(1 - exp(-|v|)) v / |v|, which is v itself near zero."""
    raised, length, power = _raised(v)
    return v * _saturation(length * power) + (raised - raised)  # no number of a row with an infinite entry


@triton.jit
def exponentially_squashed_gradient(v, g):
    """f g + (exp(-n) - f) (unit . g) unit, with f = (1 - exp(-n)) / n."""
    v, length, power = _raised(v)
    norm = length * power
    unit = v * tl.div_rn(1.0, tl.where(length == 0, 1.0, length))
    factor = _saturation(norm)
    return factor * g + (exponential(-norm) - factor) * row_sum(g * unit) * unit


@triton.jit
def updated(s, mask, N, NORM, last):
    """Poses from sums [rows, n], or [rows, a, n]: squashed, or NORMalised. Where the mask is not, s is zero.

    With NORM 2 the last are squashed exponentially, and all others stay as they are.
    """
    if NORM == 2:
        v = s
        if last:
            v = exponentially_squashed(s)
        return v
    elif NORM:
        y, _ = _normalised(s, mask, N)
        return y
    else:
        return squashed(s)


@triton.jit
def updated_gradient(s, g, mask, N, NORM, last):
    """The gradient of the sums, from that of the poses, which is zero where the mask is not."""
    if NORM == 2:
        x = g
        if last:
            x = exponentially_squashed_gradient(s, g)
        return x
    elif NORM:
        y, inverse = _normalised(s, mask, N)
        return tl.where(mask, (g - row_sum(g) / N - y * (row_sum(g * y) / N)) * inverse, 0.0)
    else:
        return squashed_gradient(s, g)
