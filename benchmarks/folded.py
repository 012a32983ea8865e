"""Folded fast routing against what it should cost: a plain linear layer of the same size, and squash."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import capsroute as cr
from capsroute.bench.measure import DTYPES, capture, together

NAN = float("nan")


@dataclass
class FoldedRow:
    """One layer, 1152 children of 8 -> 10 parents of 16, forward: milliseconds of both, and how many times as many."""

    batch: int
    dtype: str
    folded_ms: float
    linear_ms: float  # nn.Linear(9216, 160) without bias, then squash
    ratio: float
    graph_folded_ms: float = NAN  # the same as CUDA graphs, without the host's share
    graph_linear_ms: float = NAN
    graph_ratio: float = NAN


@torch.no_grad()
def measure_folded(device: str, dtype: torch.dtype) -> Iterator[FoldedRow]:
    """Both in turns, at several batch sizes."""
    folded = cr.inference.fold(cr.create_model("capsnet", decoder=None).eval(), "uniform").class_capsules
    folded, linear = folded.to(device, dtype), nn.Linear(9216, 160, bias=False).to(device, dtype)
    for batch in (1, 128, 512) if device == "cuda" else (1, 32):
        children = torch.rand(batch, 1152, 1, 8, device=device, dtype=dtype)
        flat = children.flatten(1)
        calls: list[Callable[[], Any]] = [
            functools.partial(lambda children: folded(children).poses, children),
            functools.partial(lambda flat: cr.squash(linear(flat).view(-1, 10, 1, 16), (-2, -1)), flat),
        ]
        row = FoldedRow(batch, str(dtype).removeprefix("torch."), *_compared(calls, device))
        if device == "cuda":
            found = _compared([capture(call) for call in calls], device)
            row.graph_folded_ms, row.graph_linear_ms, row.graph_ratio = found
        yield row


def _compared(calls: list, device: str) -> tuple[float, float, float]:
    ours, plain = together(calls, device)
    return ours, plain, ours / plain


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
