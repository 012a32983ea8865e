"""Averaged weights: a copy of the model that follows the trained one slowly, and is the one evaluated."""

from __future__ import annotations

import copy

import torch
from torch import nn

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

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move a little towards the weights of `model`."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        own, new = self.model.state_dict(), model.state_dict()
        floats = [name for name in own if own[name].is_floating_point()]
        torch._foreach_lerp_([own[name] for name in floats], [new[name] for name in floats], 1 - decay)
        for name in own.keys() - set(floats):
            own[name].copy_(new[name])

    def state_dict(self) -> dict:
        return {"updates": self.updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
