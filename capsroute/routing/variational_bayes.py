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

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.routing.checks import check_at_least, check_probabilities, matching
from capsroute.routing.expectation import Statistics, expect_and_maximise, maximise
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
    activations = matching("activations", activations, votes, "bi")
    check_probabilities("activations", activations)
    beta_use = matching("beta_use", beta_use, votes, "j")
    beta_activate = matching("beta_activate", beta_activate, votes, "j")
    belief = _belief(maximise(votes, votes.filled(1 / votes.parents if first is None else first), activations))
    for _ in range(1, iterations):
        gaussian = (belief.means, belief.variances, _prior(belief))
        belief = _belief(expect_and_maximise(votes, *gaussian, activations, normalise=normalise))
    scores = beta_activate - (belief.log_share.exp() * _entropy(belief) + beta_use)
    return Routed(belief.means, belief.R, scores, belief.variances)


class _Belief(NamedTuple):
    """What is believed of each parent after an M-step."""

    R: Tensor  # [b, i, j]
    means: Tensor  # m [b, j, a, o]
    variances: Tensor  # P / nu [b, j, a, o]
    P: Tensor  # [b, j, a, o]
    kappa: Tensor  # [b, j]
    nu: Tensor  # [b, j]
    log_share: Tensor  # lnpi [b, j]
    log_volume: Tensor  # the part of ln det that P has none in [b, j]


def _belief(found: Statistics) -> _Belief:
    N, pose = found.totals, found.means.shape[2] * found.means.shape[3]
    kappa, nu = 1 + N, pose + 1 + N
    shrink = (N / kappa)[:, :, None, None]
    P = 1 + N[:, :, None, None] * found.variances + shrink * found.means.square()
    log_share = kappa.digamma() - kappa.sum(1, keepdim=True).digamma()
    steps = torch.arange(pose, dtype=N.dtype, device=N.device)
    log_volume = (0.5 * (nu.unsqueeze(2) - steps)).digamma().sum(2) + pose * math.log(2)
    means, variances = shrink * found.means, P / nu[:, :, None, None]
    return _Belief(found.R, means, variances, P, kappa, nu, log_share, log_volume)


def _entropy(belief: _Belief) -> Tensor:
    """H [b,j]."""
    pose = belief.P.shape[2] * belief.P.shape[3]
    log_determinant = belief.log_volume - belief.P.log().sum((2, 3))
    return 0.5 * (pose * math.log(2 * math.pi * math.e) - log_determinant)


def _prior(belief: _Belief) -> Tensor:
    """What the E-step adds to the Gaussian log-density [b,j].

    That of variance P / nu has - (sum ln P - D ln nu) / 2 in it, and ln P is in the determinant already.
    """
    pose = belief.P.shape[2] * belief.P.shape[3]
    return belief.log_share + 0.5 * (belief.log_volume - pose * belief.nu.log() - pose / belief.kappa)
