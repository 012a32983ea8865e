"""Keep what the network gets right: a filter of ours, not of the paper."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from capsroute.inference.filters.base import Examples, Filter

__all__ = ["CorrectFilter"]


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
