"""Class numbers as masks, without a look at their values where that would cost something or is not possible."""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.routing.checks import can_look


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Class numbers int64 [b] as a mask [b,classes], true at the class; numbers that are none of 0 to classes - 1 are
    an error where values can be looked at (on a CPU, outside of compile, export and torch.func).

    >>> import torch
    >>> from capsroute.labels import one_hot
    >>> one_hot(torch.tensor([1, 0]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    if labels.dtype != torch.int64:
        raise ValueError(f"labels: expected class indices of dtype int64, got {labels.dtype}")
    if can_look(labels) and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels: expected 0 to {classes - 1} for {classes} classes, got {found}")
    # Not F.one_hot, which looks at the values: torch.func cannot follow it there.
    return labels[:, None] == torch.arange(classes, device=labels.device)
