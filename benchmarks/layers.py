"""A layer as a task: ours, the textbook form and that form compiled, in one dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from capsroute.bench.cases import Case
from capsroute.bench.measure import DTYPES, Row, forward_backward, implementations, measure_case


@dataclass
class LayerTask:
    """A case in one dtype. Compiling the textbook form of a Gaussian takes longest."""

    case: Case
    dtype: str
    device: str
    compiled: bool = True
    routes: dict[str, Callable[..., Tensor]] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"{self.case.name}, {self.dtype}"

    @property
    def cost(self) -> int:
        slow = self.case.algorithm in ("em", "heinsen", "inverted_attention")  # for torch.compile
        return 1 + (1 + slow) * self.compiled

    def prepare(self) -> None:
        self.routes = implementations(self.case, self.compiled)
        tensors = list(self.case.tensors(DTYPES[self.dtype], self.device).values())
        for name, route in self.routes.items():
            if name != "textbook":  # which has nothing to compile
                with torch.no_grad():
                    gradient = torch.ones_like(route(*tensors))
                forward_backward(route, tensors, gradient)()

    def measure(self) -> Iterator[Row]:
        routes = self.routes or implementations(self.case, self.compiled)
        yield from measure_case(self.case, DTYPES[self.dtype], self.device, routes)
