"""Triton's interpreter with products that are fused into the sums behind them, as a GPU's compiler fuses them.

What is fused is rounded once, where the interpreter rounds twice: a product less itself is then its rounding, not zero.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

import numpy as np


@contextmanager
def fused_products() -> Iterator[None]:
    """a * b + c and c - a * b of float32 are rounded once."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def multiply(self, x, y):
        out = before["fmul"](self, x, y)
        if out.data.dtype == np.float32:
            out.exact = x.data.astype(np.float64) * y.data
        return out

    def add(self, x, y, sign: int = 1):
        left, right = getattr(x, "exact", x.data), y.data if hasattr(x, "exact") else getattr(y, "exact", y.data)
        with np.errstate(all="ignore"):
            return TensorHandle((left + sign * right).astype(x.data.dtype), x.dtype.scalar)

    def kept(name: str) -> Callable:
        def keep(self, x, *rest):
            out = before[name](self, x, *rest)
            if hasattr(x, "exact"):
                same = x.exact.size == out.data.size
                out.exact = x.exact.reshape(out.data.shape) if same else np.broadcast_to(x.exact, out.data.shape)
            return out

        return keep

    names = ("fmul", "fadd", "fsub", "broadcast", "expand_dims")
    before = {name: getattr(InterpreterBuilder, f"create_{name}") for name in names}
    fused = (multiply, add, lambda self, x, y: add(self, x, y, -1), kept("broadcast"), kept("expand_dims"))
    with ExitStack() as stack:
        for name, function in zip(names, fused, strict=True):
            stack.enter_context(mock.patch.object(InterpreterBuilder, f"create_{name}", function))
        yield
