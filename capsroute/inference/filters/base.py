"""What a filter is: it sees examples batch by batch and says which of them count. And the filter of what is classified
correctly, which is ours, not of the paper."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor


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


class CorrectFilter(Filter):
    """Only examples whose own class has the largest score, by at least `margin`.

    >>> import torch
    >>> from capsroute.inference import CorrectFilter, Examples
    >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.2, 0.8]])
    >>> CorrectFilter(margin=0.2).keep(Examples(torch.zeros(3, 0), scores, torch.tensor([0, 0, 0])))
    tensor([ True, False, False])
    """

    name = "correct"

    def __init__(self, margin: float = 0.0):
        if not 0 <= margin < math.inf:
            raise ValueError(f"margin: expected a number >= 0, got {margin!r}")
        self.margin = margin

    def keep(self, examples: Examples) -> Tensor:
        own = examples.labels[:, None]
        others = examples.scores.scatter(1, own, -torch.inf).amax(1)
        lead = examples.scores.gather(1, own).squeeze(1) - others
        return (lead > 0) & (lead >= self.margin)
