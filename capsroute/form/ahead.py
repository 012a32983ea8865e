"""Kernels compiled ahead of their launch, many at once: a first step waits for the slowest, not for the sum of all.

A call that meets a kernel nobody compiled yet goes on without launching it, and collects what else is missing; all of
it is compiled in threads, and the call is made again. `dry` does the same for a whole step (`models/warming.py`).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from capsroute.form.dispatch import INTERPRETED

log = logging.getLogger(__name__)


class Missing(NamedTuple):
    """A launch that was not made: its kernel is not compiled. Of its arguments it has what `stand_in` leaves."""

    jit: Any
    grid: tuple[int, int, int]
    args: tuple
    options: dict[str, Any]


def stand_in(value: Any) -> Any:
    """All that a compiler wants to know of an argument: nothing is kept alive for it."""
    return value.dtype if isinstance(value, Tensor) and value.data_ptr() % 16 == 0 else value


class _Here(threading.local):
    missing: list[Missing] | None = None  # of one call
    dry: list[Missing] | None = None  # of a whole step
    compiled: bool = False  # all that is called from here was just compiled


_here = _Here()


def collecting() -> list[Missing] | None:
    """Where launches that cannot be made go; None where kernels are compiled as they come."""
    if INTERPRETED:  # which compiles nothing
        return None
    return _here.missing if _here.dry is None else _here.dry


def together(function: Callable, args: tuple, then: Callable[[Any], Any] | None = None) -> Any:
    """function(*args); what it has to compile first is compiled at once, with what `then(result)` will need later."""
    if INTERPRETED or _here.compiled or _here.missing is not None:
        return function(*args)
    if _here.dry is not None:
        return _blank(function(*args), args)
    missing: list[Missing] = []
    _here.missing = missing
    try:
        result = function(*args)
        if missing and then is not None:
            then(result)
    finally:
        _here.missing = None
    if missing:
        compile_together(missing)
        _here.compiled = True
        try:
            result = function(*args)
        finally:
            _here.compiled = False
    return result


@contextmanager
def dry() -> Iterator[list[Missing]]:
    """Inside, kernels that are not compiled are collected, not launched, and calls that want them return zeros.

    For this thread alone, which runs backward passes too meanwhile: what others compute is none of it.
    """
    found: list[Missing] = []
    before, _here.dry = _here.dry, found
    try:
        with torch.autograd.set_multithreading_enabled(False):
            yield found
    finally:
        _here.dry = before


def _blank(results: Any, args: Iterable) -> Any:
    """Zeros where a kernel would have filled them in: what happened to lie there may be no number, or no index."""
    given = {arg.untyped_storage().data_ptr() for arg in flat(args) if isinstance(arg, Tensor)}
    for result in flat((results,)):
        if isinstance(result, Tensor) and result.untyped_storage().data_ptr() not in given:
            result.zero_()
    return results


def flat(values: Iterable) -> Iterator:
    """What is in tuples and lists too."""
    for value in values:
        yield from flat(value) if isinstance(value, (tuple, list)) else (value,)


@triton.jit
def _nothing(x):
    pass


def start(device: torch.device) -> None:
    """What Triton does once in a process, a second of it: it reads its own source, finds tools, builds its driver."""
    with torch.cuda.device(device):
        _nothing.warmup(torch.float32, grid=(1,))


class _Compilers(ThreadPoolExecutor):
    """Threads that compile a kernel and build its launcher, which a C compiler takes 0.3 s for in some Tritons."""

    def submit(self, compile: Callable[[], Any]) -> Future:  # type: ignore[override]
        return super().submit(_with_launcher, compile)


def _with_launcher(compile: Callable[[], Any]) -> Any:
    kernel = compile()
    with suppress(Exception):  # it is built again, from Triton's cache, where the kernel is launched, and fails there
        triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
    return kernel


def compile_together(missing: list[Missing]) -> int:
    """Compile them in threads, into Triton's cache; how many different ones there were.

    What fails here fails again, with its reason, where it is launched.
    """
    mode = getattr(triton, "AsyncCompileMode", None)
    different = {(id(m.jit), str(m.options), tuple(map(_kind, m.args))): m for m in missing}
    if mode is None or len(different) < 2:
        return len(different)
    try:
        workers = min(len(different), os.cpu_count() or 1)
        # Errors are ignored, not caught: Triton 3.6 leaves its mode on, and its pool closed, where one comes through.
        with _Compilers(workers) as pool, mode(pool, ignore_errors=True):
            for each in different.values():
                each.jit.warmup(*each.args, grid=each.grid, **each.options)
    except TimeoutError:  # somebody's limit, not ours
        raise
    except Exception as error:
        log.debug("kernels were not compiled together: %s", error)
    return len(different)


def _kind(value: Any) -> Any:
    return (value.dtype, value.data_ptr() % 16) if isinstance(value, Tensor) else value
