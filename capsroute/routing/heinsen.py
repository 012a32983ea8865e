"""Heinsen routing (Heinsen 2019, algorithm 1): parents gain by what they use and lose by what they ignore.

    n times:
      E-step   R_ij <- 1 / parents at first, then f(a_j) N(V_ij; mu_j, var_j) normalised over parents, in logarithms
      D-step   D_use_ij <- f(a_i) R_ij,   D_ign_ij <- f(a_i) - D_use_ij
      M-step   a_j <- sum_i beta_use_ij D_use_ij - sum_i beta_ign_ij D_ign_ij
               mu_j, var_j <- mean and variance of V_ij weighted by D_use_ij

f is the logistic function; scores a are logits in [-inf, inf]: +inf is "always", -inf "never" (padding). As in the
authors' code, eps is added to the sum of weights that divides, and to the variance.

Betas shared by n children multiply sums of n terms: with thousands of them one step of an optimiser moves a_j by more
than f can resolve, and parents end up always on or always off. `relative` divides both sums by what they would be if
all parents had equal shares, so that betas mean the same for any number of children.
"""

import torch
from torch import Tensor

from capsroute.form.gaussian.operators import weighted_betas
from capsroute.form.gaussian.plain import HEINSEN
from capsroute.routing.checks import check_at_least, check_positive, matching
from capsroute.routing.expectation import expect_and_maximise, log_logistic, maximise, whole_loop
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def heinsen_routing(
    votes: Votes,
    scores: Tensor,
    beta_use: Tensor,
    beta_ignore: Tensor,
    iterations: int = 3,
    eps: float = 1e-5,
    relative: bool = False,
    soft_k_means: bool = False,
) -> Routed:
    """Route by expectation maximisation with net benefits and costs; scores are logits.

    votes [b,i,j,a,o], scores [b,i], beta_use and beta_ignore [i,j] or [1,j] -> poses (means) [b,j,a,o],
    coefficients R [b,i,j], scores (logits) [b,j], variances [b,j,a,o]. `relative=True`: betas that children share mean
    the same for any number of them. `soft_k_means=True`: shares by squared distance alone, whatever the variances, as
    the authors' code can.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 4, 4), torch.randn(1, 3, 4, 4))
    >>> mask = torch.tensor([[torch.inf] * 4 + [-torch.inf] * 2] * 2)
    >>> cr.heinsen_routing(votes, mask, torch.zeros(1, 3), torch.zeros(1, 3)).scores.shape
    torch.Size([2, 3])
    """
    check_at_least("iterations", iterations, 1)
    check_positive("eps", eps)
    eps = float(eps)
    scores = matching("scores", scores, votes, "bi", widen=False)
    beta_use = matching("beta_use", beta_use, votes, "ij", shared=True, widen=False)
    beta_ignore = matching("beta_ignore", beta_ignore, votes, "ij", shared=True, widen=False)
    if not relative and not soft_k_means:
        found = whole_loop(votes, scores, beta_use, beta_ignore, [1.0] * iterations, eps, HEINSEN)
        if found is not None:
            return Routed(found[0], found[3], found[2], found[1])
    scores, beta_use, beta_ignore = (t.to(votes.statistics_dtype) for t in (scores, beta_use, beta_ignore))
    gate = scores.sigmoid()  # [b, i]
    total = None
    if relative:
        # Equal shares use total / parents of the children and ignore the rest.
        total = gate.sum(1, keepdim=True).clamp_min(eps)  # [b, 1]
        beta_use, beta_ignore = votes.parents * beta_use, votes.parents / max(1, votes.parents - 1) * beta_ignore
        if not soft_k_means:
            scale = total.reciprocal()
            found = whole_loop(votes, scores, beta_use, beta_ignore, [1.0] * iterations, eps, HEINSEN, scale)
            if found is not None:
                return Routed(found[0], found[3], found[2], found[1])
    beta = beta_use + beta_ignore
    # D_ign = f(a) - D_use, so that the cost of ignoring is what ignoring all would cost, less a benefit of use.
    ignored = _weighted_sum(gate, beta_ignore, votes.backend)  # [b, j]
    found = maximise(votes, votes.filled(1 / votes.parents), gate, beta, eps)
    for _ in range(1, iterations):
        prior = log_logistic(_net(found.benefits, ignored, total))
        # A Gaussian of variance 1/2 is exp(-distance^2), up to a constant that parents share.
        variances = torch.full_like(found.variances, 0.5) if soft_k_means else found.variances + eps
        found = expect_and_maximise(votes, found.means, variances, prior, gate, beta, eps)
    return Routed(found.means, found.R, _net(found.benefits, ignored, total), found.variances + eps)


def _net(benefits: Tensor, ignored: Tensor, total: Tensor | None) -> Tensor:
    """Scores [b,j]: benefits less costs [b,j]; divided by the children's total weight [b,1] where given."""
    return benefits - ignored if total is None else (benefits - ignored) / total


def _weighted_sum(gate: Tensor, beta: Tensor, backend: str) -> Tensor:
    """Sum over children of gate [b,i] * beta [i or 1, j]: [b,j]."""
    return gate.sum(1, keepdim=True) * beta if beta.shape[0] == 1 else weighted_betas(gate, beta, backend=backend)
