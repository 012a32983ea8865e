"""Dynamic routing between capsules (Sabour 2017, procedure 1).

b_ij <- 0
r times:   c_i <- softmax over parents of b_i
           v_j <- squash(sum_i c_ij V_ij)
           b_ij <- b_ij + V_ij . v_j
"""

from capsroute.form.loop.operators import fused_loop
from capsroute.form.loop.plain import Normalise, Softmax, plain_loop
from capsroute.form.loop.stored import stored_loop
from capsroute.routing.checks import check_at_least
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def dynamic_routing(votes: Votes, iterations: int = 3, stop_gradient: bool = False) -> Routed:
    """Route by accumulated agreement with softmax over parents; poses are squashed.

    votes [b,i,j,a,o] -> poses [b,j,a,o], coefficients [b,i,j]. With `stop_gradient` only the last iteration is
    differentiated: the coefficients count as constants.

    >>> import torch, capsroute as cr
    >>> routed = cr.dynamic_routing(cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 3, 8, 16)))
    >>> routed.poses.shape, routed.coefficients.sum(2).allclose(torch.ones(2, 6))
    (torch.Size([2, 3, 1, 16]), True)
    """
    check_at_least("iterations", iterations, 1)
    return accumulated_routing(votes, 1 / votes.parents, Softmax(), iterations, stop_gradient)


def accumulated_routing(
    votes: Votes, first: float, normalise: Normalise, iterations: int, stop_gradient: bool
) -> Routed:
    """Start with every coefficient at `first`; then, repeatedly, normalise the agreement with the parents so far.

    By kernels where they apply, over stored votes where that is faster, else one question at a time.
    """
    if iterations > 1 and not stop_gradient:
        votes = votes.for_loop()
    how = (first, normalise, iterations, stop_gradient)
    found = fused_loop(votes, *how) or stored_loop(votes, *how)
    if found is None:
        start = votes.filled(first)
        found = plain_loop(votes.agreement, votes.aggregate, start, normalise, iterations, stop_gradient, votes.backend)
    return Routed(*found, None, None)
