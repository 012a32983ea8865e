"""Routing as a pooling layer: vector-normed dynamic routing (Zhao & Huang 2019, algorithm 1).

    c_i <- 1 / children,   b_i <- 0
    r times:   s <- sum_i c_i V_i
               b_i <- b_i + (V_i / |V_i|) . (s / |s|)
               c_i <- softmax over *children* of sharpness * b_i
    return     sum_i c_i V_i

sharpness = 0 is average pooling; a large sharpness picks the child that agrees most with the others.
"""

import torch
from torch import Tensor

from capsroute.routing.arguments import check_at_least, check_finite, check_probabilities, matching
from capsroute.routing.fused_pooling import fused_pooling
from capsroute.routing.normalise import over_children, over_weighted_children
from capsroute.routing.routed import Routed, routing
from capsroute.routing.squash import unit
from capsroute.votes import Votes

__all__ = ["plain_pooling", "pooling_routing"]


@routing
def pooling_routing(
    votes: Votes,
    iterations: int = 1,
    sharpness: float = 1.0,
    stop_gradient: bool = False,
    weights: Tensor | None = None,
) -> Routed:
    """Pool votes with weights that grow with their agreement; the caller applies the activation.

    votes [b,i,j,a,o] -> poses [b,j,a,o] (the weighted sum itself), coefficients [b,i,j], which sum to 1 over children.
    With `stop_gradient` coefficients are constants to the gradient, which through a vote's direction otherwise grows
    as the vote gets short. `weights` [b,i] in [0, 1] say how much a child counts before it agrees with anybody: one of
    weight 0 is not there.

    >>> import torch, capsroute as cr
    >>> u = torch.randn(2, 49, 1, 16)
    >>> cr.pooling_routing(cr.IdentityVotes(u), sharpness=0.0).poses[:, 0].allclose(u.mean(1), atol=1e-6)
    True
    """
    check_at_least("iterations", iterations, 1)
    check_finite("sharpness", sharpness)
    if weights is None:
        poses, c = fused_pooling(votes, iterations, sharpness) or plain_pooling(votes, iterations, sharpness)
    else:
        weights = matching("weights", weights, votes, "bi")
        check_probabilities("weights", weights)
        poses, c = plain_pooling(votes, iterations, sharpness, weights)
    if stop_gradient:
        c = c.detach()
        poses = votes.aggregate(c)
    return Routed(poses, c, None, None)


def plain_pooling(
    votes: Votes, iterations: int, sharpness: float, weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Poses and coefficients, question by question."""
    c = torch.full((), 1 / max(votes.children, 1), dtype=votes.statistics_dtype, device=votes.device)
    c = c.expand(votes.batch, votes.children, votes.parents)
    if weights is not None:
        c = over_weighted_children(torch.zeros_like(c), weights)
    norms = votes.norms()
    norms = torch.where(norms == 0, 1.0, norms)  # a zero vote agrees with nobody: 0 / 1
    total = votes.aggregate(c)
    query = torch.zeros_like(total)
    for _ in range(iterations):
        query = query + unit(total, (2, 3))
        logits = sharpness * votes.agreement(query) / norms
        c = over_children(logits) if weights is None else over_weighted_children(logits, weights)
        total = votes.aggregate(c)
    return total, c
