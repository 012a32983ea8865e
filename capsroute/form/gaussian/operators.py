"""Gaussian questions about linear votes as torch.library operators, for where the kernels apply.

Three operators: log-density, moments, and a whole step of expectation maximisation, which keeps nothing of size
children x parents but the coefficients it returns. Second derivatives are those of the plain form, made again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.form import dispatch
from capsroute.form.contractions.operators import is_transformed
from capsroute.form.gaussian.plain import plain_density, plain_moments, plain_step
from capsroute.form.operations import Operation

__all__ = ["applies", "gaussian_density", "gaussian_moments", "gaussian_step", "insist"]


def applies(name: str, backend: str, u: Tensor, W: Tensor, *others: Tensor | None) -> bool:
    """Whether the operator's kernels take these votes (`cr.form.explain` says why not)."""
    if backend == "torch" or any(map(is_transformed, (u, W, *others))):
        return False
    return dispatch.applies(name, u, W)


def insist(name: str, backend: str, u: Tensor, W: Tensor) -> None:
    """A forced backend that does not apply is an error."""
    if backend == "triton":
        raise ValueError(f"backend='triton' does not apply to {name}: " + "; ".join(dispatch.explain(name, u, W)))


def gaussian_density(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(vote; mean, variance) up to a constant: [b,i,j]."""
    return _DENSITY(u, W, bias, mean, variance)


def gaussian_moments(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b,j,a,o] with weights [b,i,j or 1]; sums over children of weights, and of weights * beta."""
    return _MOMENTS(u, W, bias, weights, beta, eps)[:4]


def gaussian_step(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """R [b,i,j] = softmax over parents of log-density + prior [b,j]; then the moments with weights gate [b,i] * R."""
    return _STEP(u, W, bias, gate, mean, variance, prior, beta, eps)[:5]


def _density(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    from capsroute.form.gaussian import passes as gaussian_passes

    return gaussian_passes.density_forward(u, W, bias, mean, variance)


def _moments(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.gaussian import passes as gaussian_passes

    return gaussian_passes.moments_forward(u, W, bias, weights, beta, eps)


def _step(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.gaussian import passes as gaussian_passes

    return gaussian_passes.step_forward(u, W, bias, gate, mean, variance, prior, beta, eps)


density_operator = torch.library.custom_op("capsroute::gaussian_density", _density, mutates_args=())
moments_operator = torch.library.custom_op("capsroute::gaussian_moments", _moments, mutates_args=())
step_operator = torch.library.custom_op("capsroute::gaussian_step", _step, mutates_args=())


@density_operator.register_fake
def _(u, W, bias, mean, variance):
    return _plane(u, W)


@moments_operator.register_fake
def _(u, W, bias, weights, beta, eps):
    total = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    dots = total.new_empty(0 if beta is None else total.shape)
    return _poses(u, W), _poses(u, W), total, dots, _rests(u, W)


@step_operator.register_fake
def _(u, W, bias, gate, mean, variance, prior, beta, eps):
    total = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    dots = total.new_empty(0 if beta is None else total.shape)
    return _plane(u, W), _poses(u, W), _poses(u, W), total, dots, _rests(u, W)


def _plane(u: Tensor, W: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], u.shape[1], W.shape[1]), dtype=torch.float32)


def _rests(u: Tensor, W: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], u.shape[2] * W.shape[3], W.shape[1]), dtype=torch.float32)


def _poses(u: Tensor, W: Tensor) -> Tensor:
    """[b,j,a,o], in memory [b,a,o,j]."""
    return u.new_empty((u.shape[0], u.shape[2], W.shape[3], W.shape[1]), dtype=torch.float32).permute(0, 3, 1, 2)


def _density_backward(
    g: Tensor, u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.gaussian import passes as gaussian_passes

    return gaussian_passes.density_backward(g, u, W, bias, mean, variance)


def _moments_backward(
    g_mean: Tensor | None, g_variance: Tensor | None, g_total: Tensor | None, g_dots: Tensor | None,
    g_rests: Tensor | None, u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None,
    mean: Tensor, variance: Tensor, total: Tensor, rests: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.gaussian import passes as gaussian_passes

    grads, found = (g_mean, g_variance, g_total, g_dots), (mean, variance, total, rests)
    return gaussian_passes.moments_backward(grads, u, W, bias, weights, beta, found, eps)


def _step_backward(
    g_R: Tensor | None, g_mean: Tensor | None, g_variance: Tensor | None, g_total: Tensor | None,
    g_dots: Tensor | None, g_rests: Tensor | None, u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor,
    mean: Tensor, variance: Tensor, beta: Tensor | None, R: Tensor, new_mean: Tensor, new_variance: Tensor,
    total: Tensor, rests: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.gaussian import passes as gaussian_passes

    grads, found = (g_R, g_mean, g_variance, g_total, g_dots), (new_mean, new_variance, total, rests)
    return gaussian_passes.step_backward(grads, u, W, bias, gate, mean, variance, beta, R, found, eps)


density_backward_operator = torch.library.custom_op(
    "capsroute::gaussian_density_backward", _density_backward, mutates_args=()
)
moments_backward_operator = torch.library.custom_op(
    "capsroute::gaussian_moments_backward", _moments_backward, mutates_args=()
)
step_backward_operator = torch.library.custom_op("capsroute::gaussian_step_backward", _step_backward, mutates_args=())


@density_backward_operator.register_fake
def _(g, u, W, bias, mean, variance):
    return *_like(u, W, bias), _poses(u, W), _poses(u, W)


@moments_backward_operator.register_fake
def _(g_mean, g_variance, g_total, g_dots, g_rests, u, W, bias, weights, beta, *rest):
    return *_like(u, W, bias, weights), _like(weights, beta)[1]


@step_backward_operator.register_fake
def _(g_R, g_mean, g_variance, g_total, g_dots, g_rests, u, W, bias, gate, mean, variance, beta, *rest):
    prior = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    return *_like(u, W, bias, gate), _poses(u, W), _poses(u, W), prior, _like(gate, beta)[1]


def _like(first: Tensor, *others: Tensor | None) -> list[Tensor]:
    """New tensors of these shapes; for None, one without elements."""
    return [first.new_empty(0) if t is None else t.new_empty(t.shape) for t in (first, *others)]


_DENSITY = Operation(density_operator, _density, density_backward_operator, _density_backward, plain_density, tensors=5)
_MOMENTS = Operation(
    moments_operator,
    _moments,
    moments_backward_operator,
    _moments_backward,
    plain_moments,
    tensors=5,
    kept=(0, 1, 2, 4),
)
_STEP = Operation(
    step_operator, _step, step_backward_operator, _step_backward, plain_step, tensors=8, kept=(0, 1, 2, 3, 5),
    skipped=(6,),
)  # fmt: skip
