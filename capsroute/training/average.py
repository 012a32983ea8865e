"""Averaged weights: a copy of the model that follows the trained one slowly, and is the one evaluated."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

__all__ = ["WeightAverage"]


class WeightAverage:
    """Exponential moving average of weights and running statistics.

    Early on the decay is smaller, (1 + n) / (10 + n) after n updates, so that the start is soon forgotten.

    >>> import torch
    >>> from capsroute.training.average import WeightAverage
    >>> model = torch.nn.Linear(1, 1)
    >>> average = WeightAverage(model, decay=0.9)
    >>> average.update(model)
    >>> torch.equal(average.model.weight, model.weight)
    True
    """

    def __init__(self, model: nn.Module, decay: float):
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.decay = decay
        self.updates = 0
        self._pairs: list[tuple[Tensor, Tensor]] = []  # averaged and trained; collecting them takes time

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move a little towards the weights of `model`, which must be the same one every time."""
        if not self._pairs:
            own, new = self.model.state_dict(), model.state_dict()
            self._pairs = [(own[name], new[name]) for name in own]
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        followed = [pair for pair in self._pairs if pair[0].is_floating_point()]
        torch._foreach_lerp_([own for own, _ in followed], [new for _, new in followed], 1 - decay)
        for counted, other in self._pairs:
            if not counted.is_floating_point():
                counted.copy_(other)

    def state_dict(self) -> dict:
        return {"updates": self.updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
