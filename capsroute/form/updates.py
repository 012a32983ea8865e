"""What a loop makes of its weighted sums: squash, or LayerNorm over the whole pose as inverted attention has it."""

import triton
import triton.language as tl

from capsroute.form.lengths import row_sum, squashed, squashed_gradient

EPS = tl.constexpr(1e-5)


@triton.jit
def _normalised(s, mask, N):
    """Rows less their mean over their deviation, and one over the deviation; N numbers of a row are real."""
    v = tl.where(mask, s - row_sum(s) / N, 0.0)
    inverse = tl.rsqrt(row_sum(v * v) / N + EPS)
    return v * inverse, inverse


@triton.jit
def updated(s, mask, N, NORM):
    """Poses from sums [rows, n], or [rows, a, n]: squashed, or NORMalised. Where the mask is not, s is zero."""
    if NORM:
        y, _ = _normalised(s, mask, N)
        return y
    else:
        return squashed(s)


@triton.jit
def updated_gradient(s, g, mask, N, NORM):
    """The gradient of the sums, from that of the poses, which is zero where the mask is not."""
    if NORM:
        y, inverse = _normalised(s, mask, N)
        return tl.where(mask, (g - row_sum(g) / N - y * (row_sum(g * y) / N)) * inverse, 0.0)
    else:
        return squashed_gradient(s, g)
