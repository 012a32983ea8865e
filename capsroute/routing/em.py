"""EM routing (Hinton et al. 2018, the baseline of Tsai 2020): each parent is a Gaussian over the votes it explains.

    R_ij <- 1 / parents
    t = 0, 1, ...
      M-step   r_ij <- R_ij a_i
               mu_j, var_j <- mean and variance of V_ij weighted by r_ij          (variance floored)
               cost_j <- sum over pose of (beta_use_j + log sigma_j) * sum_i r_ij
               a_j <- logistic(lambda_t (beta_activate_j - cost_j)),   lambda_t = 0.01 (1 - 0.95^(t+1))
      E-step   R_ij <- a_j N(V_ij; mu_j, var_j), normalised over parents, in logarithms

The E-step after the last M-step would change nothing that is returned, so it is left out.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from capsroute.form.gaussian.plain import EM
from capsroute.routing.checks import check_at_least, check_finite, check_positive, check_probabilities, matching
from capsroute.routing.expectation import (
    Statistics,
    expect_and_maximise,
    first_shares,
    log_logistic,
    maximise,
    whole_loop,
)
from capsroute.routing.routed import Routed, routing
from capsroute.votes import Votes


def hinton_temperature(iteration: int) -> float:
    """The inverse temperature lambda_t = 0.01 (1 - 0.95^(t+1)), t counted from 0.

    >>> from capsroute.routing.em import hinton_temperature
    >>> round(hinton_temperature(0), 6)
    0.0005
    """
    return 0.01 * (1 - 0.95 ** (iteration + 1))


@routing
def em_routing(
    votes: Votes,
    activations: Tensor,
    beta_use: Tensor,
    beta_activate: Tensor,
    iterations: int = 3,
    inverse_temperature: float | Callable[[int], float] = hinton_temperature,
    variance_floor: float = 1e-6,
    normalise: Callable[[Tensor], Tensor] | None = None,
    first: float | Tensor | None = None,
) -> Routed:
    """Route by expectation maximisation; activations are probabilities.

    votes [b,i,j,a,o], activations [b,i] in [0,1], beta_use and beta_activate [j] -> poses (means) [b,j,a,o],
    coefficients R [b,i,j], scores (activations) [b,j] in [0,1], variances [b,j,a,o].
    `normalise` (None: softmax over parents) and `first` (the first R, [b,i,j] or a number) change who competes: a
    convolutional layer lets parents at different positions compete for a child.

    >>> import torch, capsroute as cr
    >>> votes = cr.LinearVotes(torch.randn(2, 6, 4, 4), torch.randn(6, 3, 4, 4))
    >>> routed = cr.em_routing(votes, torch.rand(2, 6), torch.zeros(3), torch.zeros(3))
    >>> routed.poses.shape, routed.scores.shape
    (torch.Size([2, 3, 4, 4]), torch.Size([2, 3]))
    """
    check_at_least("iterations", iterations, 1)
    check_positive("variance_floor", variance_floor)
    if not callable(inverse_temperature):
        check_finite("inverse_temperature", inverse_temperature)
    activations = matching("activations", activations, votes, "bi", widen=False)
    check_probabilities("activations", activations)
    beta_use = matching("beta_use", beta_use, votes, "j", widen=False)
    beta_activate = matching("beta_activate", beta_activate, votes, "j", widen=False)
    rates = [
        1.0 * (inverse_temperature(t) if callable(inverse_temperature) else inverse_temperature)
        for t in range(iterations)
    ]
    if normalise is None and first is None:
        betas = beta_use.unsqueeze(0), beta_activate.unsqueeze(0)
        found = whole_loop(votes, activations, *betas, rates, float(variance_floor), EM)
        if found is not None:
            return Routed(found[0], found[3], found[2].sigmoid(), found[1])
    activations, beta_use, beta_activate = (
        t.to(votes.statistics_dtype) for t in (activations, beta_use, beta_activate)
    )
    pose = votes.rows * votes.columns

    def activate(found: Statistics, iteration: int) -> tuple[Tensor, Tensor]:
        variances = found.variances.clamp_min(variance_floor)
        cost = (pose * beta_use + 0.5 * variances.log().sum((2, 3))) * found.totals
        return variances, rates[iteration] * (beta_activate - cost)

    found = maximise(votes, first_shares(votes, first, normalise), activations)
    variances, logits = activate(found, 0)
    for iteration in range(1, iterations):
        prior = log_logistic(logits)
        found = expect_and_maximise(votes, found.means, variances, prior, activations, normalise=normalise)
        variances, logits = activate(found, iteration)
    return Routed(found.means, found.R, logits.sigmoid(), variances)
