"""Heinsen routing (Heinsen 2019; 003, algorithm 1): parents gain by what they use and lose by what they ignore.

    n times:
      E-step   R_ij <- 1 / parents at first, then f(a_j) N(V_ij; mu_j, var_j) normalised over parents, in logarithms
      D-step   D_use_ij <- f(a_i) R_ij,   D_ign_ij <- f(a_i) - D_use_ij
      M-step   a_j <- sum_i beta_use_ij D_use_ij - sum_i beta_ign_ij D_ign_ij
               mu_j, var_j <- mean and variance of V_ij weighted by D_use_ij

f is the logistic function; scores a are logits in [-inf, inf]: +inf is "always", -inf "never" (padding). As in the
authors' code, eps is added to the sum of weights that divides, and to the variance.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.routing.arguments import check_at_least, check_positive, matching
from capsroute.routing.normalise import over_parents
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes

__all__ = ["heinsen_routing"]


@routing
def heinsen_routing(
    votes: Votes, scores: Tensor, beta_use: Tensor, beta_ignore: Tensor, iterations: int = 3, eps: float = 1e-5
) -> Routed:
    """Route by expectation maximisation with net benefits and costs; scores are logits.

    votes [b,i,j,a,o], scores [b,i], beta_use and beta_ignore [i,j] or [1,j] -> poses (means) [b,j,a,o],
    coefficients R [b,i,j], scores (logits) [b,j], variances [b,j,a,o].

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 4, 4), torch.randn(1, 3, 4, 4))
    >>> mask = torch.tensor([[torch.inf] * 4 + [-torch.inf] * 2] * 2)
    >>> cr.heinsen_routing(votes, mask, torch.zeros(1, 3), torch.zeros(1, 3)).scores.shape
    torch.Size([2, 3])
    """
    check_at_least("iterations", iterations, 1)
    check_positive("eps", eps)
    scores = matching("scores", scores, votes, "bi")
    beta_use = matching("beta_use", beta_use, votes, "ij", shared=True)
    beta_ignore = matching("beta_ignore", beta_ignore, votes, "ij", shared=True)
    gate = scores.sigmoid().unsqueeze(2)  # [b, i, 1]

    def maximise(R: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        use = gate * R
        parent_scores = (beta_use * use - beta_ignore * (gate - use)).sum(1)  # [b, j]
        means, variances = votes.moments(use, eps)
        return means, R, parent_scores, variances + eps

    R = torch.full((), 1 / votes.parents, dtype=votes.statistics_dtype, device=votes.device)
    means, R, parent_scores, variances = maximise(R.expand(votes.batch, votes.children, votes.parents))
    for _ in range(1, iterations):
        logits = votes.log_density(means, variances) + F.logsigmoid(parent_scores).unsqueeze(1)
        means, R, parent_scores, variances = maximise(over_parents(logits))
    return Routed(means, R, parent_scores, variances)
