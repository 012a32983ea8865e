"""Telling how training goes: a live bar on a terminal, one line per epoch elsewhere, TensorBoard if it is installed."""

import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

EVENTS = ("begin", "epoch", "end")

REDRAW = 0.25  # seconds between two looks at the loss, which a GPU has to be waited for


class SilentReporter:
    """Says nothing: for processes other than the first, and for tests."""

    live = False  # whether bars are drawn

    def start(self, epochs: int, steps: int, done: int) -> None:
        """Training begins, with `done` of `steps` steps behind it."""

    def due(self) -> bool:
        """Whether `step` would show anything now."""
        return False

    def step(self, epoch: int, done: int, loss: float, accuracy: float, speed: float) -> None:
        """`done` steps are behind us."""

    def epoch(self, row: dict[str, float]) -> None:
        """An epoch ended with these metrics."""

    def say(self, text: str) -> None:
        """Something that happened once."""

    def stop(self) -> None:
        """Training is over, one way or the other."""


class Reporter(SilentReporter):
    """On a terminal a live bar, elsewhere one line per epoch: nothing that floods a log file."""

    def __init__(self, console: Console | None = None, tensorboard: Path | None = None):
        self.console = console or Console()
        self.live = self.console.is_terminal
        self.tensorboard = tensorboard
        self.writer: Any = None
        self.bar: Progress | None = None
        self.epochs, self.shown = 0, 0.0

    def start(self, epochs: int, steps: int, done: int) -> None:
        self.epochs = epochs
        # Not before: a run that is refused leaves no file behind.
        if self.tensorboard and find_spec("tensorboard") is not None:
            from torch.utils.tensorboard import SummaryWriter

            self.writer = SummaryWriter(str(self.tensorboard))
        if self.live:
            columns = [
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[facts]}"),
                TimeRemainingColumn(),
            ]
            self.bar = Progress(*columns, console=self.console, transient=True)
            self.task = self.bar.add_task("training", total=steps, completed=done, facts="")
            self.bar.start()

    def due(self) -> bool:
        return self.bar is not None and time.monotonic() - self.shown > REDRAW

    def step(self, epoch: int, done: int, loss: float, accuracy: float, speed: float) -> None:
        assert self.bar is not None
        facts = f"loss {loss:.4f}  accuracy {accuracy:6.2%}  {speed:,.0f} images/s"
        self.bar.update(self.task, completed=done, description=f"epoch {epoch + 1}/{self.epochs}", facts=facts)
        self.shown = time.monotonic()

    def epoch(self, row: dict[str, float]) -> None:
        width = len(str(self.epochs))
        line = f"epoch {row['epoch']:{width}.0f}/{self.epochs}  loss {row['train_loss']:.4f}"
        line += f"  accuracy {row['train_accuracy']:.2%}"
        if "validation_accuracy" in row:
            line += f"  validation {row['validation_accuracy']:.2%}"
        self.say(f"{line}  {row['images_per_second']:,.0f} images/s")
        if self.writer is not None:
            for key in row.keys() - {"epoch", "step"}:
                self.writer.add_scalar(key, row[key], int(row["step"]))

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        if self.writer is not None:
            self.writer.close()


def make_reporter(first: bool, tensorboard: Path | None) -> SilentReporter:
    """The reporter of this process: only the first one talks."""
    return Reporter(tensorboard=tensorboard) if first else SilentReporter()


class Callbacks:
    """Those who asked to be told how training goes: functions of the row of an epoch, or objects with `epoch(row)`."""

    def __init__(self, callbacks: Sequence[Any]):
        self.callbacks = callbacks
        for callback in callbacks:
            if not callable(callback) and not any(callable(getattr(callback, name, None)) for name in EVENTS):
                raise ValueError(f"callbacks: expected a function, or {', '.join(EVENTS)}, got {callback!r}")

    def tell(self, event: str, *facts: Any) -> None:
        """Call what the callbacks have for an event; a bare function hears of epochs."""
        for callback in self.callbacks:
            told = getattr(callback, event, None)
            if callable(told):
                told(*facts)
            elif event == "epoch" and callable(callback):
                callback(*facts)
