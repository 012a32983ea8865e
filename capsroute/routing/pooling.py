"""Routing as a pooling layer: vector-normed dynamic routing (Zhao & Huang 2019; 002, algorithm 1).

    c_i <- 1 / children,   b_i <- 0
    r times:   s <- sum_i c_i V_i
               b_i <- b_i + (V_i / |V_i|) . (s / |s|)
               c_i <- softmax over *children* of sharpness * b_i
    return     sum_i c_i V_i

sharpness = 0 is average pooling; a large sharpness picks the child that agrees most with the others.
"""

import torch
from torch import Tensor

from capsroute.routing.arguments import check_at_least, check_finite
from capsroute.routing.fused_pooling import fused_pooling
from capsroute.routing.normalise import over_children
from capsroute.routing.routed import Routed, routing
from capsroute.routing.squash import unit
from capsroute.votes import Votes

__all__ = ["plain_pooling", "pooling_routing"]


@routing
def pooling_routing(votes: Votes, iterations: int = 1, sharpness: float = 1.0, stop_gradient: bool = False) -> Routed:
    """Pool votes with weights that grow with their agreement; the caller applies the activation.

    votes [b,i,j,a,o] -> poses [b,j,a,o] (the weighted sum itself), coefficients [b,i,j], which sum to 1 over children.
    With `stop_gradient` coefficients are constants to the gradient, which through a vote's direction otherwise grows
    as the vote gets short.

    >>> import torch, capsroute as cr
    >>> u = torch.randn(2, 49, 1, 16)
    >>> cr.pooling_routing(cr.IdentityVotes(u), sharpness=0.0).poses[:, 0].allclose(u.mean(1), atol=1e-6)
    True
    """
    check_at_least("iterations", iterations, 1)
    check_finite("sharpness", sharpness)
    poses, c = fused_pooling(votes, iterations, sharpness) or plain_pooling(votes, iterations, sharpness)
    if stop_gradient:
        c = c.detach()
        poses = votes.aggregate(c)
    return Routed(poses, c, None, None)


def plain_pooling(votes: Votes, iterations: int, sharpness: float) -> tuple[Tensor, Tensor]:
    """Poses and coefficients, question by question."""
    c = torch.full((), 1 / max(votes.children, 1), dtype=votes.statistics_dtype, device=votes.device)
    c = c.expand(votes.batch, votes.children, votes.parents)
    norms = votes.norms()
    norms = torch.where(norms == 0, 1.0, norms)  # a zero vote agrees with nobody: 0 / 1
    total = votes.aggregate(c)
    query = torch.zeros_like(total)
    for _ in range(iterations):
        query = query + unit(total, (2, 3))
        c = over_children(sharpness * votes.agreement(query) / norms)
        total = votes.aggregate(c)
    return total, c
