"""Triton's interpreter without what it works out anew at every operation: the same numbers in a third of the time.

Older ones (3.6) round the product of a fused multiply-add, which no GPU does: they are made to round once.
"""

import dataclasses
import inspect
import operator
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest


@contextmanager
def quicker_interpreter() -> Iterator[None]:
    from triton.language import core, semantic
    from triton.runtime import interpreter

    if not hasattr(semantic, "TritonSemantic"):  # Triton 3.2, the oldest, is built in another way, and left as it is
        yield
        return
    semantics = semantic.TritonSemantic
    builder, launcher = interpreter.interpreter_builder, interpreter.GridExecutor
    block, tensor, broadcast = core.block_type.__init__, core.tensor.__init__, semantics.broadcast_impl_value
    array, lang, run = interpreter._get_np_dtype, interpreter._patch_lang, launcher.__call__
    names: dict[object, list[str]] = {}
    replaced: set[int] = set()
    blocks: dict[tuple, dict] = {}
    arrays: dict[str, object] = {}

    def patch_builtin(pkg, *rest):
        """Members of the language that are replaced at every launch are looked for once."""
        if pkg not in names:
            names[pkg] = [name for name, member in inspect.getmembers(pkg) if core.is_builtin(member)]
        if names[pkg] and core.is_builtin(getattr(pkg, names[pkg][0])):  # otherwise all of them are replaced already
            for name in names[pkg]:
                interpreter._patch_attr(pkg, name, getattr(pkg, name), *rest)

    def patch_lang(fn):
        """Functions that a kernel calls find the language replaced: once for each module of them is enough."""
        if id(fn.__globals__) in replaced:
            return None
        replaced.add(id(fn.__globals__))
        return lang(fn)

    def launch(self, *args, **options):
        replaced.clear()  # the launch before has undone it
        return run(self, *args, **options)

    def new_block(self, element_ty, shape):
        """Types of one kind and shape have everything in common; nobody changes them."""
        key = (str(element_ty), *map(operator.index, shape))
        if key not in blocks:
            block(self, element_ty, shape)
            blocks[key] = self.__dict__
        self.__dict__ = blocks[key]

    def new_tensor(self, handle, type):
        """All that a tensor has but its numbers is that of its type."""
        if "_tensor" in type.__dict__:
            self.__dict__.update(type._tensor, handle=handle)
        else:
            tensor(self, handle, type)
            type._tensor = {name: value for name, value in self.__dict__.items() if name != "handle"}

    def broadcast_values(self, lhs, rhs):
        return (lhs, rhs) if lhs.type.__dict__ is rhs.type.__dict__ else broadcast(self, lhs, rhs)

    def np_dtype(type):
        if type.name not in arrays:
            arrays[type.name] = array(type)
        return arrays[type.name]

    def fma(self, x, y, z):
        """A product of two float32 numbers is exact in float64."""
        total = np.multiply(x.data, y.data, dtype=np.float64) + z.data
        return interpreter.TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)

    # Sums and products of integers are made again in int64 for an assertion, which `debug` alone would look at.
    assert not builder.options.debug
    options = dataclasses.replace(builder.options, sanitize_overflow=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_builtin", patch_builtin)
        patch.setattr(interpreter, "_patch_lang", patch_lang)
        patch.setattr(interpreter, "_get_np_dtype", np_dtype)
        patch.setattr(launcher, "__call__", launch)
        patch.setattr(builder, "options", options)
        if not hasattr(interpreter._interpreter, "fma_fp32"):
            patch.setattr(interpreter.InterpreterBuilder, "create_fma", fma)
        patch.setattr(core.block_type, "__init__", new_block)
        patch.setattr(core.tensor, "__init__", new_tensor)
        patch.setattr(semantics, "broadcast_impl_value", broadcast_values)
        yield
