"""The exponential of a softmax, as exact as torch has it: the chip's own loses |x| roundings, and all below 1e-38."""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950216293335)  # in float32
LOG2E_REST = tl.constexpr(1.9259629911266175e-08)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def exponential(x):
    """e^x for x of zero or less, -inf included; down to the smallest numbers that float32 has."""
    x = tl.maximum(x, -200.0)
    power = x * LOG2E
    rest = tl.fma(x, LOG2E, -power) + x * LOG2E_REST
    small = power < -100
    found = tl.exp2(tl.where(small, power + 64, power)) * tl.where(small, 2.0**-64, 1.0)
    # Rounded here: fused into a sum over lanes it would be rounded for all lanes but its own, and sums would differ.
    return tl.fma(found, 1 + rest * LN2, 0.0)
