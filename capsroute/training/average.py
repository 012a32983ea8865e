"""Averaged weights: a copy of the model that follows the trained one slowly, and is the one evaluated."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

__all__ = ["averaged"]

Tensors = tuple[Tensor, ...] | list[Tensor]


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """A moving average of weights and running statistics: `update_parameters(model)` moves it, `.module` is the model.

    Early on the decay is smaller, (1 + n) / (10 + n) after n updates, so that the start is soon forgotten.

    >>> import torch
    >>> from capsroute.training.average import averaged
    >>> model = torch.nn.Linear(1, 1)
    >>> average = averaged(model, decay=0.9)
    >>> average.update_parameters(model)
    >>> torch.equal(average.module.weight, model.weight)
    True
    """

    @torch.no_grad()
    def follow(own: Tensors, new: Tensors, _: Tensor | int) -> None:
        if own[0].is_floating_point():
            # The count is kept on the CPU: a GPU is not waited for.
            updates = int(average.n_averaged)
            torch._foreach_lerp_(own, new, 1 - min(decay, (1 + updates) / (10 + updates)))
        else:
            torch._foreach_copy_(own, new)  # counts are copied

    average = AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
    average.module.requires_grad_(False)
    return average
