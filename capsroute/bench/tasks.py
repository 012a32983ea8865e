"""What a benchmark is made of: tasks that compile what they need first, and are measured afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from capsroute.bench.cases import Case
from capsroute.bench.folded import FoldedRow, measure_folded
from capsroute.bench.measure import forward_backward
from capsroute.bench.models import ModelRow, Subject, measure_model, training_step
from capsroute.bench.run import DTYPES, Row, implementations, measure_case

__all__ = ["CaseTask", "FoldedTask", "ModelTask", "Task"]


class Task(Protocol):
    """`prepare` takes long and many run at once; `measure` runs alone, in the same process, and yields rows."""

    @property
    def name(self) -> str: ...

    @property
    def cost(self) -> int: ...  # of preparing it, roughly: more begins first

    def prepare(self) -> None: ...

    def measure(self) -> Iterator[Any]: ...


@dataclass
class CaseTask:
    """A layer in one dtype: ours, the textbook form and that form compiled."""

    case: Case
    dtype: str
    device: str
    compiled: bool = True
    textbook: bool = True
    quick: bool = False
    routes: dict[str, Callable[..., Tensor]] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.case.name}, {self.dtype}"

    @property
    def cost(self) -> int:
        slow = self.case.algorithm in ("em", "heinsen", "inverted_attention")  # for torch.compile
        return 1 + (1 + slow) * self.compiled

    def prepare(self) -> None:
        self.routes = implementations(self.case, self.compiled, self.textbook)
        tensors = list(self.case.tensors(DTYPES[self.dtype], self.device).values())
        for name, route in self.routes.items():
            if name != "textbook":  # which has nothing to compile
                with torch.no_grad():
                    gradient = torch.ones_like(route(*tensors))
                forward_backward(route, tensors, gradient)()

    def measure(self) -> Iterator[Row]:
        routes = self.routes or implementations(self.case, self.compiled, self.textbook)
        yield from measure_case(self.case, DTYPES[self.dtype], self.device, routes, self.quick)


@dataclass
class ModelTask:
    """A training step and inference of a model."""

    subject: Subject
    half: bool
    compiled: bool
    device: str
    calls: tuple[Callable[[], Tensor], Callable[[], Tensor]] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        precision = "bfloat16" if self.half else "float32"
        return f"{self.subject.model}, {precision}{', compiled' if self.compiled else ''}"

    @property
    def cost(self) -> int:
        return 3 if self.compiled else 1

    def prepare(self) -> None:
        self.calls = training_step(self.subject, self.device, self.half, self.compiled)
        for call in self.calls:
            call()

    def measure(self) -> Iterator[ModelRow]:
        yield measure_model(self.subject, self.half, self.compiled, self.device, self.calls)


@dataclass
class FoldedTask:
    """Folded fast routing in one dtype."""

    dtype: str
    device: str

    @property
    def name(self) -> str:
        return f"folded, {self.dtype}"

    @property
    def cost(self) -> int:
        return 0

    def prepare(self) -> None:
        """Nothing to compile."""

    def measure(self) -> Iterator[FoldedRow]:
        yield from measure_folded(self.device, DTYPES[self.dtype])
