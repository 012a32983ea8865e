"""Self-routing in torch."""

from collections.abc import Callable

from torch import Tensor

from capsroute.form.loop.plain import masked_over_parents, or_one


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
