"""Routing as a pooling layer: vector-normed dynamic routing (Zhao & Huang 2019, algorithm 1).

    c_i <- 1 / children,   b_i <- 0
    r times:   s <- sum_i c_i V_i
               b_i <- b_i + (V_i / |V_i|) . (s / |s|)
               c_i <- softmax over *children* of sharpness * b_i
    return     sum_i c_i V_i

sharpness = 0 is average pooling; a large sharpness picks the child that agrees most with the others.
"""

from functools import partial

from torch import Tensor

from capsroute.form.pooling.operators import pooling
from capsroute.routing.checks import check_at_least, check_finite, check_probabilities, matching
from capsroute.routing.normalise import over_weighted_children
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


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
    normalise = None
    if weights is not None:
        weights = matching("weights", weights, votes, "bi")
        check_probabilities("weights", weights)
        normalise = partial(over_weighted_children, weights=weights)
    poses, c = pooling(votes, iterations, float(sharpness), normalise)
    if stop_gradient:
        c = c.detach()
        poses = votes.aggregate(c)
    return Routed(poses, c, None, None)
