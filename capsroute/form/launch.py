"""Launching a kernel for a few microseconds: what Triton looks up at every call is looked up once and kept."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.ahead import Missing, collecting, stand_in, together
from capsroute.form.dispatch import INTERPRETED

_dtype = attrgetter("dtype")


try:
    from triton.language.extra.cuda import gdc_wait
except ImportError:  # Triton before 3.4
    gdc_wait = None


def _overlaps() -> bool:
    """Whether Triton and all devices know how to bring a kernel onto the chip while the one before it ends."""
    if INTERPRETED or gdc_wait is None or torch.version.hip is not None:
        return False
    from triton.backends.nvidia.compiler import CUDAOptions

    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    capable = all(torch.cuda.get_device_capability(device) >= (9, 0) for device in devices)
    return capable and "launch_pdl" in CUDAOptions.__dataclass_fields__


OVERLAPS = tl.constexpr(_overlaps())
# How all kernels are compiled. Triton 3.10 is to leave products alone that 3.9 and all before it fuse into sums.
COMPILED = {"enable_fp_fusion": True} | ({"launch_pdl": True} if OVERLAPS.value else {})


@triton.jit
def in_turn():
    """The first line of every kernel: it comes onto the chip while the one before it ends, and waits here for its end.

    A step of a small layer is a row of kernels of two or three microseconds, of which coming onto the chip is one. No
    kernel lets the next one come sooner: programs then crowd on the cores that are free, and some steps took 1.4 times
    as long.
    """
    if OVERLAPS:
        gdc_wait()


class Ready(NamedTuple):
    """A compiled kernel: its launcher, the grid, and what goes before and after the run-time arguments."""

    launcher: Callable
    grid: tuple[int, int, int]
    before: tuple
    after: tuple

    def run(self, stream: int | None, args: tuple) -> None:
        self.launcher(*self.grid, stream, *self.before, *args, *self.after)


@dataclass(frozen=True)
class Launch:
    """A grid, how many tiles a program walks over, how many partial results that leaves, and compile-time arguments."""

    grid: tuple[int, int, int]
    tiles: int
    splits: int
    options: dict[str, Any]
    ready: dict[tuple, Ready] = field(default_factory=dict, repr=False, compare=False)


class Kernel:
    """A Triton kernel, called with a `Launch`, run-time arguments in order, and further compile-time arguments by name.

    Run-time parameters come before compile-time ones, tensors first. The compiled form is kept with the launch, one for
    all that Triton specialises on and the launch does not fix: dtypes, flags and the `kind` of arguments (`kind_of`).
    """

    tensors: int | None = None  # how many there are; the first call says

    def __init__(self, function: Callable, **options: Any):
        self.jit = triton.jit(function, **options)
        self.name = function.__name__

    def __call__(self, launch: Launch, kind: LaunchKind, *args: Any, **flags: Any) -> Ready | None:
        """Run it; returns what a `LaunchSequence` needs to run it again, or None where nothing is compiled."""
        if self.tensors is None:
            self.tensors = sum(isinstance(arg, Tensor) for arg in args)
        key = (self.name, kind.key, *flags.items(), *map(_dtype, args[: self.tensors]))
        ready = launch.ready.get(key)
        if ready is None:
            return self._first(launch, key, args, flags)
        ready.run(kind.stream, args)
        return ready

    def _first(self, launch: Launch, key: tuple, args: tuple, flags: dict) -> Ready | None:
        missing, options = collecting(), {**launch.options, **COMPILED, **flags}
        if missing is not None:
            missing.append(Missing(self.jit, launch.grid, tuple(map(stand_in, args)), options))
            return None
        compiled, given = self._compile(launch, args, options)
        if compiled is None or not _launches_directly(compiled):  # the interpreter compiles nothing
            return None
        # What compiled[grid](...) does, less what it makes anew for each launch: hooks of profilers are not called.
        before = compiled.function, compiled.packed_metadata, None, None, None
        after = tuple(given[name] for name in self.jit.arg_names[len(args) :])
        launch.ready[key] = ready = Ready(compiled.run, launch.grid, before, after)
        return ready

    def _compile(self, launch: Launch, args: tuple, options: dict) -> tuple[Any, dict]:
        """Run it the first time, with as many stages (NS) of its pipeline as the chip's shared memory holds."""
        while True:
            try:
                return self.jit[launch.grid](*args, **options), options
            except triton.runtime.errors.OutOfResources:
                if options.get("NS", 1) == 1:
                    raise
                options = {**options, "NS": options["NS"] - 1}


def _launches_directly(compiled: Any) -> bool:
    """Whether a compiled kernel is as in Triton 3, where its launcher can be called; otherwise Triton is asked anew."""
    known = all(hasattr(compiled, name) for name in ("function", "packed_metadata", "run"))
    return known and triton.__version__.startswith("3.")


class LaunchSequence:
    """The launches of one call, in order. Calls with the same `key` make the same launches of the same kinds.

    So the first of them leaves a list, and in a later one a launch costs no more than taking the next of it.
    """

    __slots__ = ("_kept", "_key", "_kind", "_made", "_ready")

    def __init__(self, kept: dict[tuple, list[Ready]], kind: LaunchKind, *key: Any):
        self._kept, self._key, self._kind = kept, (kind.key, *key), kind
        self._made: list[Ready | None] = []
        found = kept.get(self._key)
        self._ready = None if found is None else iter(found)

    def __call__(self, kernel: Kernel, launch: Launch, *args: Any, **flags: Any) -> None:
        if self._ready is None:
            self._made.append(kernel(launch, self._kind, *args, **flags))
        else:
            launcher, grid, before, after = next(self._ready)
            launcher(*grid, self._kind.stream, *before, *args, *after)

    def end(self) -> None:
        """All launches were made."""
        if self._ready is None and None not in self._made:
            self._kept[self._key] = self._made  # type: ignore[assignment]


class LaunchKind(NamedTuple):
    """Where a group of launches runs, and what their compiled forms depend on."""

    key: tuple
    stream: int | None


def kind_of(first: Tensor, *given: Tensor | int | None) -> LaunchKind:
    """The kind of a group of launches, from all tensors and strides that were not allocated for them.

    Tensors count by alignment, numbers by value; what is allocated here is aligned.
    """
    # The stream object of torch.cuda takes ten times as long to make.
    index = first.device.index
    stream = torch._C._cuda_getCurrentRawStream(index) if first.is_cuda else None
    marks = [x.data_ptr() % 16 if isinstance(x, Tensor) else x for x in given]
    return LaunchKind((index, first.data_ptr() % 16, *marks), stream)


def on_device(function: Callable) -> Callable:
    """Decorator: the function launches kernels on the device of its first tensor, whichever is current.

    It may be called twice: the first time it does, to find out what has to be compiled.
    """

    @functools.wraps(function)
    def guarded(*args: Any) -> Any:
        index = _first_tensor(args).device.index  # type: ignore[union-attr]
        if index is None or index == torch.cuda.current_device():
            return together(function, args)
        with torch.cuda.device(index):
            return together(function, args)

    return guarded


def _first_tensor(values: Iterable) -> Tensor | None:
    """Of these, and of what is in tuples and lists among them."""
    for value in values:
        found = _first_tensor(value) if isinstance(value, (tuple, list)) else value
        if isinstance(found, Tensor):
            return found
    return None


def kernel(*do_not_specialize: str) -> Callable[[Callable], Kernel]:
    """Decorator: this function is a kernel; the named numbers do not make a new one."""
    return lambda function: Kernel(function, do_not_specialize=list(do_not_specialize))
