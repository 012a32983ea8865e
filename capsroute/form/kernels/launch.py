"""Launching a kernel for a few microseconds: what Triton looks up at every call is looked up once and kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

__all__ = ["Kernel", "Kind", "Launch", "kernel", "kind_of", "on_device"]


@dataclass(frozen=True)
class Launch:
    """A grid, how many tiles a program walks over, how many partial results that leaves, and compile-time arguments."""

    grid: tuple[int, int, int]
    tiles: int
    splits: int
    options: dict[str, Any]
    ready: dict[tuple, tuple[Callable, tuple]] = field(default_factory=dict, repr=False, compare=False)


class Kernel:
    """A Triton kernel, called with a `Launch`, run-time arguments in order, and further compile-time arguments by name.

    Run-time parameters come before compile-time ones. The compiled form is kept with the launch, one for all that
    Triton specialises on and the launch does not fix: dtypes, flags and the `kind` of arguments (see `kind_of`).
    """

    def __init__(self, function: Callable, **options: Any):
        self.jit = triton.jit(function, **options)
        self.name = function.__name__

    def __call__(self, launch: Launch, kind: Kind, *args: Any, **flags: Any) -> None:
        key = (self.name, kind.key, *flags.values(), *[arg.dtype for arg in args if isinstance(arg, Tensor)])
        ready = launch.ready.get(key)
        if ready is None:
            self._first(launch, key, args, flags)
        else:
            ready[0](*args, *ready[1], stream=kind.stream)

    def _first(self, launch: Launch, key: tuple, args: tuple, flags: dict) -> None:
        compiled = self.jit[launch.grid](*args, **flags, **launch.options)
        if compiled is not None:  # the interpreter compiles nothing
            given = {**launch.options, **flags}
            launch.ready[key] = compiled[launch.grid], tuple(given[name] for name in self.jit.arg_names[len(args) :])


class Kind(NamedTuple):
    """Where a group of launches runs, and what their compiled forms depend on."""

    key: tuple
    stream: int | None


def kind_of(*given: Tensor | int | None) -> Kind:
    """The kind of a group of launches, from all tensors and strides that were not allocated for them.

    Tensors count by alignment, numbers by value; what is allocated here is aligned.
    """
    device = next(x.device for x in given if isinstance(x, Tensor))
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None
    marks = [x.data_ptr() % 16 if isinstance(x, Tensor) else x for x in given]
    return Kind((device.index, *marks), stream)


def on_device(function: Callable) -> Callable:
    """Decorator: the function launches kernels on the device of its first tensor, whichever is current."""

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        index = next(arg.device.index for arg in args if isinstance(arg, Tensor))
        if index is None or index == torch.cuda.current_device():
            return function(*args)
        with torch.cuda.device(index):
            return function(*args)

    return guarded


def kernel(*do_not_specialize: str) -> Callable[[Callable], Kernel]:
    """Decorator: this function is a kernel; the named numbers do not make a new one."""
    return lambda function: Kernel(function, do_not_specialize=list(do_not_specialize))
