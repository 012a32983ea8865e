"""Variational Bayes routing (Ribeiro, Leontidis & Kollias 2020), diagonal: parents are Gaussians with priors.

With D = a o numbers in a pose and priors alpha0 = kappa0 = 1, m0 = 0, Psi0 = 1, nu0 = D + 1:

    R_ij <- 1 / parents
    M-step   w_ij = a_i R_ij,  N_j = sum_i w_ij,   mu_j, var_j the mean and variance of V_ij weighted by w_ij
             alpha_j = kappa_j = 1 + N_j,   nu_j = D + 1 + N_j,   m_j = N_j mu_j / kappa_j
             P_j = 1 + N_j var_j + (N_j / kappa_j) mu_j^2                                    (per number of the pose)
             lnpi_j  = digamma(alpha_j) - digamma(sum_j alpha_j)
             lndet_j = sum_d digamma((nu_j - d) / 2) + D ln 2 - sum ln P_j,   d = 0 .. D - 1
    E-step   R_ij <- softmax over parents of  lnpi_j + lndet_j / 2 - [D / kappa_j + nu_j sum (V_ij - m_j)^2 / P_j] / 2
    score_j = beta_activate_j - (exp(lnpi_j) H_j + beta_use_j),    H_j = D ln(2 pi e) / 2 - lndet_j / 2

The E-step is a Gaussian log-density of mean m_j and variance P_j / nu_j plus a number per parent, so it is the step
that EM routing repeats. All of it stays in logarithms: the released code divides densities by their sum, no less than
1e-11, and coefficients of far votes then do not sum to one. There is no E-step after the last M-step. N_j = 0 gives
m_j = 0.
"""

from collections.abc import Callable

from torch import Tensor

from capsroute.form.gaussian.plain import BAYES, belief
from capsroute.routing.checks import check_at_least, check_probabilities, matching
from capsroute.routing.expectation import expect_and_maximise, first_shares, maximise, whole_loop
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


@routing
def vb_routing(
    votes: Votes,
    activations: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    iterations: int = 3,
    normalise: Callable[[Tensor], Tensor] | None = None,
    first: Tensor | None = None,
) -> Routed:
    """Route by variational Bayes over a mixture of Gaussians; scores are logits before any normalisation.

    votes [b,i,j,a,o], activations [b,i] in [0,1], beta_use and beta_activate [j] -> poses m [b,j,a,o], coefficients R
    [b,i,j], scores [b,j] (a layer applies batch norm and the logistic function), variances P / nu [b,j,a,o].
    `normalise` and `first` (the first R [b,i,j]) change who competes, as in `cr.em_routing`.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 4, 4), torch.randn(6, 3, 4, 4))
    >>> routed = cr.vb_routing(votes, torch.rand(2, 6), torch.zeros(3), torch.zeros(3))
    >>> routed.poses.shape, routed.scores.shape, routed.coefficients.sum(2).allclose(torch.ones(2, 6))
    (torch.Size([2, 3, 4, 4]), torch.Size([2, 3]), True)
    """
    check_at_least("iterations", iterations, 1)
    activations = matching("activations", activations, votes, "bi", widen=False)
    check_probabilities("activations", activations)
    beta_use = matching("beta_use", beta_use, votes, "j", widen=False)
    beta_activate = matching("beta_activate", beta_activate, votes, "j", widen=False)
    if normalise is None and first is None:
        betas = beta_use.unsqueeze(0), beta_activate.unsqueeze(0)
        routed = whole_loop(votes, activations, *betas, [1.0] * iterations, 0.0, BAYES)
        if routed is not None:
            return Routed(routed[0], routed[3], routed[2], routed[1])
    activations, beta_use, beta_activate = (
        t.to(votes.statistics_dtype) for t in (activations, beta_use, beta_activate)
    )
    found = maximise(votes, first_shares(votes, first, normalise), activations)
    means, variances, prior, cost = belief(found.means, found.variances, found.totals)
    for _ in range(1, iterations):
        found = expect_and_maximise(votes, means, variances, prior, activations, normalise=normalise)
        means, variances, prior, cost = belief(found.means, found.variances, found.totals)
    return Routed(means, found.R, beta_activate - (cost + beta_use), variances)
