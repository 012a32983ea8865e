"""From logits to coefficients [b,i,j]: over parents (most algorithms) or over weighted children (pooling only)."""

import torch
from torch import Tensor

from capsroute.form.loop.plain import MaxMin, masked_over_parents, or_one

__all__ = ["masked_over_parents", "max_min", "or_one", "over_parents", "over_weighted_children"]


def over_parents(logits: Tensor) -> Tensor:
    """Softmax over parents: what a child gives away sums to one (Sabour 2017, equation 3)."""
    return logits.softmax(2)


def over_weighted_children(logits: Tensor, weights: Tensor) -> Tensor:
    """Softmax over children that count as much as weights [b,i] say; all zero where nobody counts.

    >>> import torch
    >>> from capsroute.routing.normalise import over_weighted_children
    >>> over_weighted_children(torch.zeros(1, 3, 1), torch.tensor([[1.0, 0.5, 0.0]])).flatten()
    tensor([0.6667, 0.3333, 0.0000])
    """
    if logits.shape[1] == 0:
        return logits
    absent, weights = (weights == 0).unsqueeze(2), weights.unsqueeze(2)
    peak = logits.detach().masked_fill(absent, -torch.inf).amax(1, keepdim=True)
    peak = torch.where(peak.isinf(), 0.0, peak)
    shares = weights * (logits - peak).masked_fill(absent, -torch.inf).exp()
    return shares / or_one(shares.sum(1, keepdim=True))


def max_min(logits: Tensor, lower: float = 0.0, upper: float = 1.0) -> Tensor:
    """Each child's logits stretched over [lower, upper] across parents (Zhao 2019, equation 2).

    A child whose logits are all equal prefers no parent: it gives `upper` to each, and its gradient is zero. (The first
    iteration, before there are logits, gives one to each, whatever `upper` is.)

    >>> import torch
    >>> from capsroute.routing.normalise import max_min
    >>> max_min(torch.tensor([[[1.0, 2.0, 5.0], [3.0, 3.0, 3.0]]]))
    tensor([[[0.0000, 0.2500, 1.0000],
             [1.0000, 1.0000, 1.0000]]])
    """
    return MaxMin(lower, upper)(logits)
