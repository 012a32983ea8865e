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
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.compiler import ASTSource

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
        _nothing.warmup(torch.float32, grid=(1,), enable_fp_fusion=True)


# Whose code is unrolled over parents or over a pose, slowest first: they compile longest, and begin before all others.
LONGEST = (
    "aggregate_plane", "agreement_plane", "children_and_transforms", "backward_pass", "forward_pass", "vote_gradients",
    "make_votes", "quadratic", "whole_backward", "last_gradients", "weighted_moments", "attend", "uniform_pass",
)  # fmt: skip

_turn = threading.Lock()


class _InTurn(ASTSource):
    """A kernel's source. What Python makes of it, Triton's first form, it makes of one kernel after another.

    Python runs one thread at a time: all at once they would be done together, at the end, and the slowest kernel would
    wait for all others before its passes, which need no Python, begin. Its launcher is built beside those.
    """

    building: threading.Thread | None = None

    def make_ir(self, *args: Any, **kwargs: Any) -> Any:
        with _turn:
            made = super().make_ir(*args, **kwargs)
        self.building = threading.Thread(target=_build_launcher, args=(self, SimpleNamespace()))
        self.building.start()
        return made


@contextmanager
def _taking_turns(jit: Any) -> Iterator[None]:
    """What is compiled from here takes turns; a Triton that does not know these names compiles in whichever order."""
    known = False
    with suppress(AttributeError, TypeError):
        jit.device_caches[triton.runtime.driver.active.get_current_device()]  # the first time, it sets the other
        known = jit.ASTSource is ASTSource
    if known:
        jit.ASTSource = _InTurn
    try:
        yield
    finally:
        if known:
            jit.ASTSource = ASTSource


def _build_launcher(source: Any, metadata: Any) -> None:
    """A C compiler takes 0.3 s for it in some Tritons; they keep it on disk, and want no metadata until it is there."""
    with suppress(Exception):  # it is built again where the kernel is launched, and fails there
        triton.runtime.driver.active.launcher_cls(source, metadata)


class _Compilers(ThreadPoolExecutor):
    """Threads that compile a kernel and load its launcher; with fewer stages, where the chip does not hold as many."""

    each: Missing | None = None  # what is submitted next

    def submit(self, compile: Callable[[], Any]) -> Future:  # type: ignore[override]
        return super().submit(_with_launcher, compile, self.each)


def _with_launcher(compile: Callable[[], Any], each: Missing | None) -> Any:
    kernel = made = compile()
    if getattr(kernel.src, "building", None) is not None:
        kernel.src.building.join()  # it is on disk then, and not built a second time
    _build_launcher(kernel.src, kernel.metadata)
    while each is not None and _too_large(each, made):  # a launch will find out, and ask for the next
        each = each._replace(options={**each.options, "NS": each.options["NS"] - 1})
        made = each.jit.warmup(*each.args, grid=each.grid, **each.options)
    return kernel


def _too_large(each: Missing, kernel: Any) -> bool:
    """Whether it takes more shared memory than there is, and may take less."""
    if each.options.get("NS", 1) == 1:
        return False
    active = triton.runtime.driver.active
    return kernel.metadata.shared > active.utils.get_device_properties(active.get_current_device())["max_shared_mem"]


def compile_together(missing: list[Missing]) -> int:
    """Compile them in threads, into Triton's cache; how many different ones there were.

    What fails here fails again, with its reason, where it is launched.
    """
    mode = getattr(triton, "AsyncCompileMode", None)
    different = {(id(m.jit), str(m.options), tuple(map(_kind, m.args))): m for m in sorted(missing, key=_place)}
    if mode is None or len(different) < 2:
        return len(different)
    try:
        workers = min(len(different), os.cpu_count() or 1)
        # Errors are ignored, not caught: Triton 3.6 leaves its mode on, and its pool closed, where one comes through.
        with _Compilers(workers) as pool, mode(pool, ignore_errors=True):
            for each in different.values():
                pool.each = each
                with _taking_turns(each.jit):
                    each.jit.warmup(*each.args, grid=each.grid, **each.options)
    except TimeoutError:  # somebody's limit, not ours
        raise
    except Exception as error:
        log.debug("kernels were not compiled together: %s", error)
    return len(different)


def _place(missing: Missing) -> int:
    name = getattr(missing.jit, "__name__", "")
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def _kind(value: Any) -> Any:
    return (value.dtype, value.data_ptr() % 16) if isinstance(value, Tensor) else value
