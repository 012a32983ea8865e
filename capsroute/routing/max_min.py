"""Routing with max-min normalisation (Zhao 2019, section 3: equation 2 and its procedure).

    c_ij <- 1,   b_ij <- 0
    r times:   v_j <- squash(sum_i c_ij V_ij)
               b_ij <- b_ij + V_ij . v_j
               c_ij <- lower + (b_ij - min_j b_ij) / (max_j b_ij - min_j b_ij) * (upper - lower)

Coefficients are independent probabilities: they do not sum to one over parents.
"""

from capsroute.form.loop.plain import MaxMin
from capsroute.routing.checks import check_at_least, check_bounds
from capsroute.routing.dynamic import accumulated_routing
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def max_min_routing(
    votes: Votes, iterations: int = 3, lower: float = 0.0, upper: float = 1.0, stop_gradient: bool = False
) -> Routed:
    """Route by accumulated agreement, stretched over [lower, upper] across parents; poses are squashed.

    votes [b,i,j,a,o] -> poses [b,j,a,o], coefficients [b,i,j]. `stop_gradient` differentiates only the last iteration,
    which keeps 1 / (max - min) out of the gradient: training from small weights needs it.

    >>> import torch, capsroute as cr
    >>> routed = cr.max_min_routing(cr.LinearVotes(torch.randn(2, 6, 1, 8), torch.randn(6, 3, 8, 16)))
    >>> routed.coefficients.amin().item(), routed.coefficients.amax().item()
    (0.0, 1.0)
    """
    check_at_least("iterations", iterations, 1)
    check_bounds(lower, upper)
    return accumulated_routing(votes, 1.0, MaxMin(float(lower), float(upper)), iterations, stop_gradient)
