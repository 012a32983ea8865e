"""Gaussian questions about linear votes as operations, for where their kernels apply.

Log-density, moments, a step, and all iterations of EM or Heinsen routing: they keep nothing larger than children x
parents. u [b,i,a,k], W [i or 1,j,k,o], bias [i or 1,j,a,o] or None, poses [b,j,a,o].
"""

import torch
from torch import Tensor

from capsroute.form.gaussian.plain import plain_density, plain_loop, plain_moments, plain_step, plain_sums
from capsroute.form.operations import Operation


def _plane(u: Tensor, W: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], u.shape[1], W.shape[1]), dtype=torch.float32)


def _poses(u: Tensor, W: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], W.shape[1], u.shape[2], W.shape[3]), dtype=torch.float32)


def _moments(u: Tensor, W: Tensor, beta: Tensor | None) -> tuple[Tensor, ...]:
    (b, _, a, _), (_, j, _, o) = u.shape, W.shape
    total, statistics, brief = (
        u.new_empty(shape, dtype=torch.float32) for shape in ((b, j), (b, 3, j, a * o), (b, 3, j))
    )
    return _poses(u, W), _poses(u, W), total, total.new_empty(0 if beta is None else (b, j)), statistics, brief


def _like(first: Tensor, *others: Tensor | None) -> list[Tensor]:
    """New tensors of these shapes; for None, one without elements."""
    return [first.new_empty(0) if t is None else t.new_empty(t.shape) for t in (first, *others)]


# log N(vote; mean, variance) up to a constant [b,i,j].
gaussian_density = Operation(
    "gaussian_density", plain_density, tensors=5, asks=(0, 1),
    schema="(Tensor u, Tensor W, Tensor? bias, Tensor mean, Tensor variance) -> Tensor",
    fake=lambda u, W, *_: _plane(u, W),
    fake_backward=lambda u, W, bias, *_: [*_like(u, W, bias), _poses(u, W), _poses(u, W)],
)  # fmt: skip

# Mean and variance with weights [b,i,j or 1]; sums of weights, and of weights * beta (empty without).
gaussian_moments = Operation(
    "gaussian_moments", plain_moments, tensors=5, asks=(0, 1), results=4, kept=slice(4, 6),
    schema="(Tensor u, Tensor W, Tensor? bias, Tensor weights, Tensor? beta, float eps) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=lambda u, W, bias, weights, beta, eps: _moments(u, W, beta),
    fake_backward=lambda u, W, bias, weights, beta: [*_like(u, W, bias, weights), _like(weights, beta)[1]],
)  # fmt: skip


def _rows(u: Tensor, W: Tensor) -> Tensor:
    """Poses [b,j,a,o] that lie in memory as [b,a,o,j]."""
    return u.new_empty((u.shape[0], u.shape[2], W.shape[3], W.shape[1]), dtype=torch.float32).permute(0, 3, 1, 2)


def _made(u: Tensor, W: Tensor, beta: Tensor | None) -> tuple[Tensor, ...]:
    """Moments, sums and rests [b, a*o, j] of votes that were made in registers."""
    b, j, f = u.shape[0], W.shape[1], u.shape[2] * W.shape[3]
    return _rows(u, W), _rows(u, W), *_moments(u, W, beta)[2:4], u.new_empty((b, f, j), dtype=torch.float32)


# The same for large layers, whose kernels make votes in registers; and a whole step: R [b,i,j] = softmax over parents
# of log-density + prior [b,j], then the moments with weights gate [b,i] * R.
first_moments = Operation(
    "first_moments", plain_moments, tensors=5, asks=(0, 1), results=4, kept=slice(5), falls_back=True,
    schema="(Tensor u, Tensor W, Tensor? bias, Tensor weights, Tensor? beta, float eps) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=lambda u, W, bias, weights, beta, eps: _made(u, W, beta),
    fake_backward=lambda u, W, bias, weights, beta: [*_like(u, W, bias, weights), _like(weights, beta)[1]],
)  # fmt: skip
gaussian_step = Operation(
    "gaussian_step", plain_step, tensors=8, asks=(0, 1), results=5, kept=slice(6), falls_back=True, seldom=(0,),
    schema="(Tensor u, Tensor W, Tensor? bias, Tensor gate, Tensor mean, Tensor variance, Tensor prior, Tensor? beta, "
    "float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=lambda u, W, bias, gate, mean, variance, prior, beta, eps: (_plane(u, W), *_made(u, W, beta)),
    fake_backward=lambda u, W, bias, gate, mean, variance, prior, beta: [
        *_like(u, W, bias, gate), _rows(u, W), _rows(u, W), prior.new_empty(prior.shape, dtype=torch.float32),
        _like(gate, beta)[1],
    ],
)  # fmt: skip


def _loop(u: Tensor, W: Tensor, rates: list[float]) -> tuple[Tensor, ...]:
    (b, i, a, _), (_, j, _, o), T = u.shape, W.shape, len(rates)
    shapes = (b, j, a, o), (b, j, a, o), (b, j), (T - 1, b, i, j), (T, b, 3, j, a * o), (T, b, 3, j)
    return tuple(u.new_empty(shape, dtype=torch.float32) for shape in shapes)


# Sums over children of gate [b,i] * beta [i,j].
weighted_betas = Operation(
    "weighted_betas", plain_sums, tensors=2, asks=(0, 1), falls_back=True,
    schema="(Tensor gate, Tensor beta) -> Tensor",
    fake=lambda gate, beta: gate.new_empty((gate.shape[0], beta.shape[1])),
    fake_backward=lambda gate, beta: _like(gate, beta),
)  # fmt: skip


# All iterations of EM, Heinsen or variational Bayes routing, over stored votes: see `plain_loop`.
gaussian_loop = Operation(
    "gaussian_loop", plain_loop, tensors=7, asks=(0, 1), results=4, kept=slice(3, 6), falls_back=True, seldom=(3,),
    schema="(Tensor u, Tensor W, Tensor? bias, Tensor scores, Tensor use, Tensor other, Tensor? scale, float[] "
    "rates, float eps, int kind) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    fake=lambda u, W, bias, scores, use, other, scale, rates, eps, kind: _loop(u, W, rates),
    fake_backward=lambda u, W, bias, scores, use, other, scale: [
        *_like(u, W, bias, scores, use, other), u.new_empty(0 if scale is None else scale.shape, dtype=torch.float32)
    ],
)  # fmt: skip
