"""Products under Triton's interpreter as a GPU's matrix unit makes them: operands in parts, sums cut to float32.

The interpreter multiplies float32 exactly, so it does not show what parts lose. On one H200 the errors of products in
three TF32 parts were those found here, to two digits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np


def _tf32(x: np.ndarray) -> np.ndarray:
    """Ten bits of mantissa, halves rounded away from zero."""
    bits = np.ascontiguousarray(x, np.float32).view(np.int32)
    return ((bits + 0x1000) & -0x2000).view(np.float32)


def _bf16(x: np.ndarray) -> np.ndarray:
    """Seven bits of mantissa, halves rounded to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


# How a number is cut, into how many parts, which of them are multiplied (the largest last), how many at once.
WAYS = {
    "tf32x3": (_tf32, 2, ((1, 0), (0, 1), (0, 0)), 8),
    "bf16x6": (_bf16, 3, ((1, 1), (2, 0), (0, 2), (1, 0), (0, 1), (0, 0)), 16),
}


def _parts(x: np.ndarray, cut, count: int) -> list[np.ndarray]:
    found = []
    for _ in range(count):
        found.append(cut(x))
        x = x - found[-1]
    return found


def _toward_zero(x: np.ndarray) -> np.ndarray:
    near = x.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def product(a: np.ndarray, b: np.ndarray, how: str) -> np.ndarray:
    """a [..., m, k] b [..., k, n], both float32, in float32."""
    cut, count, pairs, step = WAYS[how]
    left, right = _parts(a, cut, count), _parts(b, cut, count)
    total = np.zeros((*a.shape[:-1], b.shape[-1]), np.float32)
    for m, n in pairs:
        if m == n == 0:
            total = np.nan_to_num(total, nan=0.0, posinf=np.inf, neginf=-np.inf)  # infinity has no lower parts
        x, y = left[m].astype(np.float64), right[n].astype(np.float64)
        for k in range(0, a.shape[-1], step):
            total = _toward_zero(total + np.matmul(x[..., k : k + step], y[..., k : k + step, :]))
    return total


@contextmanager
def products(how: str) -> Iterator[None]:
    """Inside, the interpreter multiplies float32 so: "tf32x3" or "bf16x6"."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self, a, b, d, *_):
        with np.errstate(all="ignore"):
            return TensorHandle(product(a.data, b.data, how) + d.data, d.dtype.scalar)

    with mock.patch.object(InterpreterBuilder, "create_dot", create_dot):
        yield
