"""Stopping well: a loss that is no number, memory that ran out, a signal: each becomes one readable message."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves


class NonFiniteLoss(ArithmeticError):
    """The loss turned NaN or infinite; the message says at which step and which module produced it first."""


class OutOfMemory(MemoryError):
    """Memory ran out; the message says the batch size, the peak and what to lower."""


class Interrupted(KeyboardInterrupt):
    """A signal asked a run to end; the message says how to go on, `signal` which one it was."""

    def __init__(self, message: str, signal: int):
        super().__init__(message)
        self.signal = signal


class StopSignals:
    """SIGTERM, SIGHUP and SIGINT inside a `with`: the first is remembered in `received`, a second ends at once.

    Outside of the main thread, where Python has no signals, nothing is changed; nor is a signal that is ignored already
    (`nohup`, jobs in the background). Where nothing has to be finished first, `at_once` makes the first end at once.
    """

    def __init__(self, explain: Callable[[], str]):
        self.explain = explain
        self.at_once = True
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGHUP", "SIGINT"):
                number = getattr(signal, name, None)
                if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                    self._before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: object) -> None:
        if self.at_once or self.received is not None:
            self.received = number
            self.end()
        self.received = number

    def end(self) -> None:
        """Raise Interrupted."""
        assert self.received is not None
        raise Interrupted(f"stopped by {signal.Signals(self.received).name}; {self.explain()}", self.received)


class LossGuard:
    """Looks at every loss before the weights are changed by it, without making a GPU wait.

    `watch(loss)` comes after the forward pass and `check(...)` after the backward pass has been queued: by then a GPU
    has the loss, and still has work while we look.
    """

    def __init__(self, device: torch.device):
        self.on_gpu = device.type == "cuda"
        self.value = torch.zeros((), pin_memory=self.on_gpu)
        self.arrived = torch.cuda.Event() if self.on_gpu else None

    def watch(self, loss: Tensor) -> None:
        self.value.copy_(loss.detach(), non_blocking=True)
        if self.arrived is not None:
            self.arrived.record()

    def check(self, step: int, blame: Callable[[], str]) -> None:
        """Raise NonFiniteLoss unless the loss last watched is finite; `blame` finds out who it was."""
        if self.arrived is not None:
            self.arrived.synchronize()
        value = self.value.item()
        if value - value != 0:  # NaN and infinities
            raise _stopped(step, f"the loss is {value}", blame)


@contextmanager
def explain_nan(step: int, blame: Callable[[], str]) -> Iterator[None]:
    """Routing refuses NaN where it looks at its arguments: that too is a loss that turned NaN."""
    try:
        yield
    except ValueError as error:
        if "expected no NaN" not in str(error):
            raise
        raise _stopped(step, "the loss cannot be computed", blame) from error


def _stopped(step: int, what: str, blame: Callable[[], str] | None) -> NonFiniteLoss:
    why = "" if blame is None else f"; {blame()}"
    return NonFiniteLoss(f"step {step}: {what}{why}. The last checkpoint is good.")


@torch.no_grad()
def check_weights(model: nn.Module, step: int, total: Callable[[Tensor], Tensor] = lambda values: values) -> None:
    """Raise NonFiniteLoss unless every weight is finite: a finite loss may have a gradient that is not.

    `total` sums over all processes, each of which may hold a part of the weights.
    """
    tensors = [_local(values) for values in (*model.parameters(), *model.buffers()) if values.is_floating_point()]
    if not tensors:
        return
    spoilt = torch.stack([(~values.isfinite()).any() for values in tensors]).any().float()
    if total(spoilt) > 0:
        names = [name for name, values in model.named_parameters() if not _finite(_local(values))]
        where = f", down from {names[-1]!r}" if names else ""
        raise _stopped(step, f"the loss was finite and its gradient was not: the weights are spoilt{where}", None)


def _local(values: Tensor) -> Tensor:
    return values.to_local() if hasattr(values, "to_local") else values  # type: ignore[operator]


@torch.no_grad()
def first_bad_module(model: nn.Module, run: Callable[[], Any]) -> str:
    """In words, which module first produced a number that is not finite while `run` calls the model.

    >>> import torch
    >>> from capsroute.training.stopping import first_bad_module
    >>> class Log(torch.nn.Module):
    ...     def forward(self, x):
    ...         return x.log()
    >>> model = torch.nn.Sequential(torch.nn.ReLU(), Log())
    >>> first_bad_module(model, lambda: model(torch.tensor([-1.0])))
    "the first module to produce one is '1' (Log)"
    """
    for name, values in (*model.named_parameters(), *model.named_buffers()):
        if not _finite(values):
            # A gradient that is no number spoils everything below the module it comes from, and that module too.
            spoilt = [other for other, parameter in model.named_parameters() if not _finite(parameter)]
            last = (spoilt or [name])[-1]
            return f"its update in the step before spoilt the weights, down from {last!r}"
    found: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            stack.enter_context(module.register_forward_hook(partial(_look, name, found)))
        try:
            run()
        except ValueError:
            # Routing refused it; the module that made it has been seen by then.
            if not found:
                raise
    if not found:
        return "every module's output is finite: the loss itself is not"
    return f"the first module to produce one is {found[0]}"


def _look(name: str, found: list[str], module: nn.Module, inputs: Any, output: Any) -> None:
    """Note the first module whose output is not finite."""
    if not found and not all(map(_finite, tree_leaves(output))):
        if name == "" or not all(map(_finite, tree_leaves(inputs))):
            found.append("none: what went in was not finite already")
        else:
            found.append(f"{name!r} ({type(module).__name__})")


def _finite(values: Any) -> bool:
    """Whether numbers are; anything else counts as such."""
    return not isinstance(values, Tensor) or not values.is_floating_point() or bool(values.isfinite().all())


@contextmanager
def explain_memory(batch_size: int, accumulate: int, device: torch.device) -> Iterator[None]:
    """Running out of memory inside becomes an OutOfMemory that says what to do."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
        # The CPU allocator has no exception class of its own.
        if not isinstance(error, (torch.OutOfMemoryError, MemoryError)) and "can't allocate memory" not in str(error):
            raise
        if device.type == "cuda":
            device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
            peak = torch.cuda.max_memory_allocated(device) / 2**30
            total = torch.cuda.get_device_properties(device).total_memory / 2**30
            used = f"the peak was {peak:.1f} of {total:.1f} GiB"
        else:
            import resource

            used = f"the peak was {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB"
        raise OutOfMemory(
            f"out of memory on {device} with batches of {batch_size} in {accumulate} part(s): {used}. "
            f"training.accumulate={2 * accumulate} gives the same result in less memory; training.precision=bf16 "
            "and a smaller training.batch_size need less too."
        ) from error
