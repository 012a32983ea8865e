"""What a filter is: it sees examples batch by batch and says which of them count."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Examples", "Filter", "Pass"]


class Examples(NamedTuple):
    """What a filter sees of a batch."""

    columns: Tensor  # [b, i] float64, the ground-truth column of each example; [b, 0] when there is no class layer
    scores: Tensor  # [b, classes]
    labels: Tensor  # [b]


Pass = Callable[[], Iterator[Examples]]  # each call goes through all examples of this process once


class Filter:
    """No filtering: every example counts. A subclass overrides `keep`, and `fit` if it has to look at all first."""

    name = "none"
    needs_columns = False
    needs_fit = False

    def fit(self, examples: Pass, num_classes: int) -> None:
        """Look at all examples, as often as needed, before any is kept."""

    def keep(self, examples: Examples) -> Tensor:
        """Which examples count: bool [b]."""
        return torch.ones_like(examples.labels, dtype=torch.bool)

    def config(self) -> dict[str, Any]:
        """Name and options, as plain data that `make_filter` takes back."""
        return {
            "name": self.name,
            **{option: getattr(self, option) for option in inspect.signature(type(self)).parameters},
        }
