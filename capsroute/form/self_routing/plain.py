"""Self-routing in torch, and its softmax, which knows "never" and "always"."""

from collections.abc import Callable

import torch
from torch import Tensor


def masked_over_parents(logits: Tensor) -> Tensor:
    """Softmax over parents in which -inf is "never" and +inf "always"; a child that never goes anywhere gives nothing.

    >>> import torch
    >>> from capsroute.routing.normalise import masked_over_parents
    >>> masked_over_parents(torch.tensor([[[-torch.inf, 0.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]]]))
    tensor([[[0., 1.],
             [1., 0.],
             [0., 0.]]])
    """
    # Beside the largest number there is nothing else has a share, and unlike infinity it can be subtracted from itself.
    logits = logits.clamp_max(torch.finfo(logits.dtype).max)
    nowhere = (logits == -torch.inf).all(2, keepdim=True)
    return logits.masked_fill(nowhere, 0.0).softmax(2).masked_fill(nowhere, 0.0)


def or_one(total: Tensor) -> Tensor:
    """A divisor that is one where it would be zero."""
    return total.masked_fill(total == 0, 1.0)


def plain_self_routing(
    aggregate: Callable[[Tensor], Tensor], activations: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Shares r [b,i,j], poses [b,j,a,o] and scores [b,j], of activations [b,i] and logits [b,i,j]; `aggregate` sums
    votes with weights [b,i,j]."""
    r = masked_over_parents(logits)
    weights = activations.unsqueeze(2) * r  # [b, i, j]
    received = weights.sum(1)  # [b, j]
    scores = received / or_one(activations.sum(1, keepdim=True))
    # Divided before the sum: weights of 1e-30 are as good as weights of one.
    return r, aggregate(weights / or_one(received).unsqueeze(1)), scores
