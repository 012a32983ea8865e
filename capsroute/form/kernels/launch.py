"""Launching a kernel for a few microseconds: what Triton looks up at every call is looked up once and kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
from torch import Tensor

__all__ = ["Kernel", "Launch", "kernel"]


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

    Run-time parameters come before compile-time ones. The compiled form is kept with the launch, one for each kind of
    arguments: numbers by value, tensors by dtype, device and alignment, which is all that Triton specialises on.
    """

    def __init__(self, function: Callable, **options: Any):
        self.jit = triton.jit(function, **options)
        self.name = function.__name__

    def __call__(self, launch: Launch, *args: Any, **flags: Any) -> None:
        device = args[0].device
        if device.type == "cuda" and device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(launch, *args, **flags)
        key = (self.name, device.index, *flags.values(), *(_kind(arg) for arg in args))
        ready = launch.ready.get(key)
        if ready is None:
            self._first(launch, key, args, flags)
        else:
            ready[0](*args, *ready[1])

    def _first(self, launch: Launch, key: tuple, args: tuple, flags: dict) -> None:
        compiled = self.jit[launch.grid](*args, **flags, **launch.options)
        if compiled is not None:  # the interpreter compiles nothing
            given = {**launch.options, **flags}
            launch.ready[key] = compiled[launch.grid], tuple(given[name] for name in self.jit.arg_names[len(args) :])


def _kind(arg: Any) -> Any:
    return (arg.dtype, arg.data_ptr() % 16 == 0) if isinstance(arg, Tensor) else arg


def kernel(*do_not_specialize: str) -> Callable[[Callable], Kernel]:
    """Decorator: this function is a kernel; the named numbers do not make a new one."""
    return lambda function: Kernel(function, do_not_specialize=list(do_not_specialize))
