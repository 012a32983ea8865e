"""Densities, moments and whole EM steps from the Gaussian kernels, and their gradients.

Poses come out as [b,j,a,o] and lie in memory as [b,a,o,j], in which order the kernels read them again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from capsroute.form.gaussian.calls import (
    Softmax,
    Voters,
    beta_sums,
    by_parents,
    density_rows,
    gradients,
    moments,
    moments_rows,
    quadratic_plane,
    sums_about,
    voters,
)
from capsroute.form.gaussian.plan import MOST_PARENTS
from capsroute.form.launch import on_device
from capsroute.form.plan import Sizes

__all__ = [
    "density_backward",
    "density_forward",
    "moments_backward",
    "moments_forward",
    "step_backward",
    "step_forward",
]


Grads = Sequence[Tensor | None]  # of the outputs; None: zero


@on_device
def density_forward(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(vote; mean, variance) up to a constant [b,i,j]."""
    return quadratic_plane(voters(u, W, bias), density_rows(_rows(mean), _rows(variance)))[0]


@on_device
def density_backward(grads: Grads, tensors: tuple, kept: tuple) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by u, W, bias (empty without one), mean and variance."""
    (g,), (u, W, bias, mean, variance) = grads, tensors
    assert g is not None
    v = voters(u, W, bias)
    dense = density_rows(_rows(mean), _rows(variance))
    by_u, by_W, by_bias, sums = gradients(v, W.dtype, dense=dense, slope=g)
    _, by_mean, by_variance = _by_parents(v, g, sums, dense, variance)
    return by_u, by_W, by_bias, by_mean, by_variance


@on_device
def moments_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b,j,a,o] with weights [b,i,j or 1]; sums of weights and (empty without) weights * beta.

    The last, rests [b, a*o, j], is for the gradient: sums of weights times distances from the mean.
    """
    v = voters(u, W, bias)
    mean, variance, totals, dots, rests = moments(v, _plane(v, weights), None, _whole(beta), eps)
    return _poses(mean, v.s), _poses(variance, v.s), totals, dots, rests


@on_device
def moments_backward(
    grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by u, W, bias, weights and beta, from those of the outputs (None: zero); empty for what is None."""
    u, W, bias, weights, beta = tensors
    v, beta = voters(u, W, bias), _whole(beta)
    plane, table = _plane(v, weights), _moments_table(grads, kept, eps, beta)
    sum_over_parents = weights.shape[2] == 1 and v.s.j <= MOST_PARENTS
    by_weights, summed = quadratic_plane(v, table, "sum" if sum_over_parents else "store", beta=beta)
    if sum_over_parents:
        by_weights = summed.unsqueeze(2)
    elif weights.shape[2] == 1 < v.s.j:
        by_weights = by_weights.sum(2, keepdim=True)
    by_u, by_W, by_bias, _ = gradients(v, W.dtype, weighed=table, plane=plane)
    return by_u, by_W, by_bias, by_weights, _by_beta(plane, None, grads[3], beta)


@on_device
def step_forward(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """R = softmax over parents of log-density + prior[b,j], then the moments with weights gate[b,i] * R."""
    v = voters(u, W, bias)
    R, _ = quadratic_plane(v, density_rows(_rows(mean), _rows(variance), prior), "softmax")
    mean, variance, totals, dots, rests = moments(v, R, gate.contiguous(), _whole(beta), eps)
    return R, _poses(mean, v.s), _poses(variance, v.s), totals, dots, rests


@on_device
def step_backward(grads: Grads, tensors: tuple, kept: tuple[Tensor, ...], eps: float) -> tuple[Tensor, ...]:
    """Gradients by u, W, bias, gate, mean, variance, prior and beta."""
    (u, W, bias, gate, mean, variance, _, beta), (R, *found) = tensors, kept
    v, gate, R, beta = voters(u, W, bias), gate.contiguous(), R.contiguous(), _whole(beta)
    weighed = _moments_table(grads[1:5], found, eps, beta)
    slope, by_gate = quadratic_plane(v, weighed, "back", Softmax(R, gate, grads[0]), beta)
    dense = density_rows(_rows(mean), _rows(variance))
    by_u, by_W, by_bias, sums = gradients(v, W.dtype, weighed, R, gate, dense, slope)
    by_prior, by_mean, by_variance = _by_parents(v, slope, sums, dense, variance)
    return by_u, by_W, by_bias, by_gate, by_mean, by_variance, by_prior, _by_beta(R, gate, grads[4], beta)


def _rows(poses: Tensor) -> Tensor:
    return poses.flatten(2).mT  # [b, a*o, j]


def _poses(rows: Tensor, s: Sizes) -> Tensor:
    return rows.unflatten(1, (s.a, s.o)).permute(0, 3, 1, 2)


def _whole(beta: Tensor | None) -> Tensor | None:
    return None if beta is None else beta.contiguous()


def _plane(v: Voters, weights: Tensor) -> Tensor:
    return weights.expand(-1, -1, v.s.j)


def _moments_table(grads: Grads, found: Sequence[Tensor], eps: float, beta: Tensor | None) -> Tensor:
    """From gradients of mean, variance, total and dots; found are those and the rests."""
    mean, variance, total, _, rests = found
    mean, variance = _rows(mean).contiguous(), _rows(variance).contiguous()
    rows = [None if g is None else _rows(g) for g in grads[:2]]
    return moments_rows([*rows, *grads[2:4]], mean, variance, total, rests, eps, beta is not None)


def _by_parents(v: Voters, slope: Tensor, sums: Tensor | None, dense: Tensor, variance: Tensor) -> tuple[Tensor, ...]:
    """Gradients by prior [b,j], mean and variance [b,j,a,o] of log-densities whose gradient is slope [b,i,j]."""
    if sums is None:
        sums = sums_about(v, slope, dense)
    prior, by_mean, by_variance = by_parents(sums, _rows(variance))
    return prior, _poses(by_mean, v.s), _poses(by_variance, v.s)


def _by_beta(plane: Tensor, gate: Tensor | None, dots: Tensor | None, beta: Tensor | None) -> Tensor:
    if beta is None:
        return plane.new_empty(0)
    return torch.zeros_like(beta) if dots is None else beta_sums(plane, gate, dots.contiguous())
