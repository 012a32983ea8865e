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
        # Averaged and trained tensors, kept because collecting them takes time: numbers that follow, counts that jump.
        self._followed: tuple[list[Tensor], list[Tensor]] | None = None
        self._copied: tuple[list[Tensor], list[Tensor]] = [], []

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move a little towards the weights of `model`, which must be the same one every time."""
        if self._followed is None:
            own, new = self.model.state_dict(), model.state_dict()
            floats = [name for name in own if own[name].is_floating_point()]
            others = [name for name in own if not own[name].is_floating_point()]
            self._followed = [own[name] for name in floats], [new[name] for name in floats]
            self._copied = [own[name] for name in others], [new[name] for name in others]
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        torch._foreach_lerp_(*self._followed, 1 - decay)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)

    def state_dict(self) -> dict:
        return {"updates": self.updates, "model": self.model.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.updates = state["updates"]
        self.model.load_state_dict(state["model"])
