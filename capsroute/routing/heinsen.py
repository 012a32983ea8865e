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

from capsroute.form.checks import check_shape
from capsroute.routing.normalise import over_parents
from capsroute.routing.routed import Routed, check_at_least, check_finite, check_no_nan, routing
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
    check_finite("eps", eps)
    if eps <= 0:
        raise ValueError(f"eps: expected a number > 0, got {eps!r}")
    check_shape("scores", scores, (votes.batch, votes.children), "bi")
    check_no_nan("scores", scores)
    wide = votes.statistics_dtype
    beta_use = _beta("beta_use", beta_use, votes).to(wide)
    beta_ignore = _beta("beta_ignore", beta_ignore, votes).to(wide)
    gate = scores.to(wide).sigmoid().unsqueeze(2)  # [b, i, 1]

    def maximise(R: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        use = gate * R
        parent_scores = (beta_use * use - beta_ignore * (gate - use)).sum(1)  # [b, j]
        means, variances = votes.moments(use, eps)
        return means, R, parent_scores, variances + eps

    R = torch.full((), 1 / votes.parents, dtype=wide, device=votes.device)
    means, R, parent_scores, variances = maximise(R.expand(votes.batch, votes.children, votes.parents))
    for _ in range(1, iterations):
        logits = votes.log_density(means, variances) + F.logsigmoid(parent_scores).unsqueeze(1)
        means, R, parent_scores, variances = maximise(over_parents(logits))
    return Routed(means, R, parent_scores, variances)


def _beta(name: str, beta: Tensor, votes: Votes) -> Tensor:
    shapes = [(votes.children, votes.parents), (1, votes.parents)]
    if not isinstance(beta, Tensor) or tuple(beta.shape) not in shapes:
        given = tuple(beta.shape) if isinstance(beta, Tensor) else repr(beta)
        raise ValueError(f"{name}: expected shape {shapes[0]} or {shapes[1]} [i or 1,j], got {given}")
    return beta
