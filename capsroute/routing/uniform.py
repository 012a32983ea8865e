"""Uniform coefficients: no routing at all, the control that every routing is measured against.

    v_j <- squash(1 / parents * sum_i V_ij)

It is the first iteration of dynamic routing (Sabour et al. 2017, procedure 1).
"""

import torch

from capsroute.routing.fast import fast_routing
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def uniform_routing(votes: Votes) -> Routed:
    """Every child gives every parent the same share; poses are squashed.

    votes [b,i,j,a,o] -> poses [b,j,a,o], coefficients [b,i,j], all of them 1 / parents.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 4, 8, 16))
    >>> routed = cr.uniform_routing(votes)
    >>> routed.coefficients.unique(), routed.poses.allclose(cr.dynamic_routing(votes, 1).poses, atol=1e-6)
    (tensor([0.2500]), True)
    """
    size, share = (votes.children, votes.parents), 1 / max(1, votes.parents)
    return fast_routing(votes, torch.full(size, share, dtype=votes.statistics_dtype, device=votes.device))
