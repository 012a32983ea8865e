"""Directions and lengths of rows, and squash made of them: finite for every finite row, from 1e-38 to 1e38."""

import triton
import triton.language as tl

__all__ = ["direction", "squashed", "squashed_gradient"]


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
def direction(v):
    """Rows of length one [rows, n], and their lengths [rows, 1]; of zero both are zero. Matrices [rows, a, n] likewise.

    Squares of a row over its largest entry neither overflow nor vanish.
    """
    largest = row_max(tl.abs(v))
    v = tl.div_rn(v, tl.where(largest == 0, 1.0, largest))
    length = tl.sqrt_rn(row_sum(v * v))
    return tl.div_rn(v, tl.where(largest == 0, 1.0, length)), length * largest


@triton.jit
def squashed(v):
    """v |v| / (1 + |v|^2), which is the direction times n^2 / (1 + n^2), above one 1 / (1 + 1/n^2)."""
    unit, norm = direction(v)
    short, inverse = tl.minimum(norm, 1.0), tl.div_rn(1.0, tl.maximum(norm, 1.0))
    return unit * tl.where(norm > 1, tl.div_rn(1.0, 1 + inverse * inverse), tl.div_rn(short * short, 1 + short * short))


@triton.jit
def squashed_gradient(v, g):
    """f g + f' n (unit . g) unit, with f = n / (1 + n^2); above one in terms of 1/n, which does not overflow."""
    unit, norm = direction(v)
    # f is the same of n and of 1/n, and f' n changes its sign.
    small = tl.where(norm > 1, tl.div_rn(1.0, tl.maximum(norm, 1.0)), norm)
    factor = tl.div_rn(small, 1 + small * small)
    slope = factor * tl.div_rn(1 - small * small, 1 + small * small)
    return factor * g + tl.where(norm > 1, -slope, slope) * row_sum(g * unit) * unit
