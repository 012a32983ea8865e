"""Expectation and maximisation over votes, the step that EM, Heinsen and variational Bayes routing repeat.

The expectation: R_ij <- softmax over parents of log N(V_ij; mu_j, var_j) + prior_j.
The maximisation, with r_ij = gate_i R_ij: mu_j, var_j <- mean and variance of V_ij weighted by r_ij;
total_j <- sum_i r_ij; benefit_j <- sum_i beta_ij r_ij, where beta is one unless given.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.form.gaussian.operators import first_moments, gaussian_loop, gaussian_moments, gaussian_step
from capsroute.routing.checks import check_finite
from capsroute.routing.normalise import over_parents
from capsroute.votes import Votes


class Statistics(NamedTuple):
    """What a maximisation finds out about each parent, and the coefficients it was given."""

    R: Tensor  # [b, i, j]
    means: Tensor  # [b, j, a, o]
    variances: Tensor  # [b, j, a, o]
    totals: Tensor  # [b, j]
    benefits: Tensor  # [b, j]


def first_shares(votes: Votes, first: float | Tensor | None, normalise: Callable[[Tensor], Tensor] | None) -> Tensor:
    """R [b,i,j] as it starts, 1 / parents unless `first` says, after a look at what changes who competes."""
    if normalise is not None and not callable(normalise):
        expected = "a function of logits [b,i,j], or None for softmax over parents"
        raise ValueError(f"normalise: expected {expected}, got {normalise!r}")
    if first is None:
        return votes.filled(1 / votes.parents)
    if not isinstance(first, Tensor):
        check_finite("first", first)
        return votes.filled(first)
    shape = (votes.batch, votes.children, votes.parents)
    sizes = zip(reversed(first.shape), reversed(shape))
    if first.dim() > 3 or not all(have == want or have == 1 for have, want in sizes):
        raise ValueError(f"first: expected a number or shape {shape} [b,i,j], got {tuple(first.shape)}")
    return votes.filled(first)


def maximise(votes: Votes, R: Tensor, gate: Tensor, beta: Tensor | None = None, eps: float = 0.0) -> Statistics:
    """Gaussians of the votes with weights gate [b,i] * R [b,i,j]; eps is added to the sum of weights that divides.

    beta [i,j] or [1,j]. An expanded R is never written out.
    """
    weights = gate.unsqueeze(2) * (R if R.stride(2) else R[:, :, :1])  # [b, i, j or 1]
    factors = votes.factors()
    if factors is not None:
        for moments in (first_moments, gaussian_moments):
            found = moments.attempt(votes.backend, *factors, weights, _per_child(beta), eps)
            if found is not None:
                return _statistics(R, found, beta)
    weights = weights.expand(-1, -1, votes.parents)
    means, variances = votes.moments(weights, eps)
    totals = weights.sum(1)
    return Statistics(R, means, variances, totals, totals if beta is None else (weights * beta).sum(1))


def expect_and_maximise(
    votes: Votes, means: Tensor, variances: Tensor, prior: Tensor, gate: Tensor, beta: Tensor | None = None,
    eps: float = 0.0, normalise: Callable[[Tensor], Tensor] | None = None,
) -> Statistics:  # fmt: skip
    """Who explains each vote, given the Gaussians and prior [b,j]; then the Gaussians of what each explains.

    `normalise` makes coefficients of logits [b,i,j]; None: softmax over parents.
    """
    factors = votes.factors() if normalise is None else None
    if factors is not None:
        found = gaussian_step.attempt(votes.backend, *factors, gate, means, variances, prior, _per_child(beta), eps)
        if found is not None:
            return _statistics(found[0], found[1:], beta)
    normalise = over_parents if normalise is None else normalise  # torch 2.11 cannot compile `or` of functions
    R = normalise(votes.log_density(means, variances) + prior.unsqueeze(1))
    return maximise(votes, R, gate, beta, eps)


def whole_loop(
    votes: Votes, scores: Tensor, use: Tensor, other: Tensor, rates: list[float], eps: float, kind: int,
    scale: Tensor | None = None,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """All iterations at once, where that has kernels: means, variances, logits and R; see `plain_loop`.

    Scores and betas in any dtype: kernels widen what they read.
    """
    factors = votes.factors()
    if factors is None:
        return None
    if use.shape != other.shape:  # one of each child, the other shared by all
        use, other = torch.broadcast_tensors(use, other)
    found = gaussian_loop.attempt(votes.backend, *factors, scores, use, other, scale, rates, eps, kind)
    if found is None:
        return None
    means, variances, logits, shares = found
    return means, variances, logits, votes.filled(1 / votes.parents) if len(rates) == 1 else shares[-1]


def log_logistic(logits: Tensor) -> Tensor:
    """log of the logistic function. Exported, `F.logsigmoid` is Log(Sigmoid(x)), which is -inf below -18."""
    return -F.softplus(-logits, threshold=40)  # beyond it softplus is the identity; 20 would cost float64 digits


def _per_child(beta: Tensor | None) -> Tensor | None:
    """Betas that all children share are left out of the sums: they are a factor of the total."""
    return None if beta is None or beta.shape[0] == 1 else beta


def _statistics(R: Tensor, found: Sequence[Tensor], beta: Tensor | None) -> Statistics:
    means, variances, totals, dots = found
    if beta is None:
        return Statistics(R, means, variances, totals, totals)
    return Statistics(R, means, variances, totals, totals * beta if beta.shape[0] == 1 else dots)
