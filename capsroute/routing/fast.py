"""Fast routing with master coefficients (Zhao 2019, Fast Routing Procedure for Inference).

    v_j <- squash(sum_i C_ij V_ij)

C_ij is given, the same for every sample. With linear votes the whole layer is one matrix product,
reshape(u) @ reshape(C W), and over a map of capsules one convolution.
"""

from torch import Tensor

from capsroute.form.rows.squash import squash
from capsroute.routing.checks import matching
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def fast_routing(votes: Votes, coefficients: Tensor) -> Routed:
    """One pass with given coefficients [i,j]; poses are squashed.

    votes [b,i,j,a,o] -> poses [b,j,a,o], coefficients [b,i,j] (the same for every sample).

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 3, 8, 16))
    >>> cr.fast_routing(votes, torch.full((6, 3), 1 / 3)).poses.allclose(cr.dynamic_routing(votes, 1).poses, atol=1e-6)
    True
    """
    C = matching("coefficients", coefficients, votes, "ij")
    poses = squash(votes.aggregate_folded(C), (2, 3), votes.backend)
    return Routed(poses, C.expand(votes.batch, votes.children, votes.parents), None, None)
