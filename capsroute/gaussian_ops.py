"""Gaussian questions about linear votes as torch.library operators, for where the kernels apply.

Three operators: log-density, moments, and a whole step of expectation maximisation, which keeps nothing of size
children x parents but the coefficients it returns. Second derivatives are those of the plain form, made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from capsroute import form
from capsroute.form.ops import is_transformed
from capsroute.gaussian import ChildMoments, dense_log_density, dense_moments, moments_pay

__all__ = ["applies", "gaussian_density", "gaussian_moments", "gaussian_step", "insist"]


_known: dict[tuple, list[str]] = {}


def applies(name: str, backend: str, u: Tensor, W: Tensor, *others: Tensor | None) -> bool:
    """Whether the operator's kernels take these votes (`cr.form.explain` says why not)."""
    if backend == "torch" or any(map(is_transformed, (u, W, *others))):
        return False
    if torch.compiler.is_compiling():
        return not form.explain(name, u, W)
    key = (name, u.device.type, u.dtype, W.dtype, u.shape, W.shape)
    if key not in _known:
        _known[key] = form.explain(name, u, W)
    return not _known[key]


def insist(name: str, backend: str, u: Tensor, W: Tensor) -> None:
    """A forced backend that does not apply is an error."""
    if backend == "triton":
        raise ValueError(f"backend='triton' does not apply to {name}: " + "; ".join(form.explain(name, u, W)))


@torch.library.custom_op("capsroute::gaussian_density", mutates_args=())
def gaussian_density(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.density_forward(u, W, bias, mean, variance)


@torch.library.custom_op("capsroute::gaussian_moments", mutates_args=())
def gaussian_moments(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.moments_forward(u, W, bias, weights, beta, eps)


@torch.library.custom_op("capsroute::gaussian_step", mutates_args=())
def gaussian_step(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.step_forward(u, W, bias, gate, mean, variance, prior, beta, eps)


@gaussian_density.register_fake
def _(u, W, bias, mean, variance):
    return _plane(u, W)


@gaussian_moments.register_fake
def _(u, W, bias, weights, beta, eps):
    total = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    return _poses(u, W), _poses(u, W), total, total.new_empty(0 if beta is None else total.shape)


@gaussian_step.register_fake
def _(u, W, bias, gate, mean, variance, prior, beta, eps):
    total = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    return _plane(u, W), _poses(u, W), _poses(u, W), total, total.new_empty(0 if beta is None else total.shape)


def _plane(u: Tensor, W: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], u.shape[1], W.shape[1]), dtype=torch.float32)


def _poses(u: Tensor, W: Tensor) -> Tensor:
    """[b,j,a,o], in memory [b,a,o,j]."""
    return u.new_empty((u.shape[0], u.shape[2], W.shape[3], W.shape[1]), dtype=torch.float32).permute(0, 3, 1, 2)


@torch.library.custom_op("capsroute::gaussian_density_backward", mutates_args=())
def _density_backward(
    g: Tensor, u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.density_backward(g, u, W, bias, mean, variance)


@torch.library.custom_op("capsroute::gaussian_moments_backward", mutates_args=())
def _moments_backward(
    g_mean: Tensor | None, g_variance: Tensor | None, g_total: Tensor | None, g_dots: Tensor | None, u: Tensor,
    W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, mean: Tensor, variance: Tensor,
    total: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.kernels import gaussian_passes

    grads, found = (g_mean, g_variance, g_total, g_dots), (mean, variance, total)
    return gaussian_passes.moments_backward(grads, u, W, bias, weights, beta, found, eps)


@torch.library.custom_op("capsroute::gaussian_step_backward", mutates_args=())
def _step_backward(
    g_R: Tensor | None, g_mean: Tensor | None, g_variance: Tensor | None, g_total: Tensor | None,
    g_dots: Tensor | None, u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor,
    beta: Tensor | None, R: Tensor, new_mean: Tensor, new_variance: Tensor, total: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.kernels import gaussian_passes

    grads, found = (g_R, g_mean, g_variance, g_total, g_dots), (new_mean, new_variance, total)
    return gaussian_passes.step_backward(grads, u, W, bias, gate, mean, variance, beta, R, found, eps)


@_density_backward.register_fake
def _(g, u, W, bias, mean, variance):
    return *_like(u, W, bias), _poses(u, W), _poses(u, W)


@_moments_backward.register_fake
def _(g_mean, g_variance, g_total, g_dots, u, W, bias, weights, beta, *rest):
    return *_like(u, W, bias), _plane(u, W), *_like(beta)


@_step_backward.register_fake
def _(g_R, g_mean, g_variance, g_total, g_dots, u, W, bias, gate, mean, variance, beta, *rest):
    prior = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    return *_like(u, W, bias, gate), _poses(u, W), _poses(u, W), prior, *_like(beta)


def _like(*tensors: Tensor | None) -> list[Tensor]:
    """Empty tensors of these shapes, of no elements for None."""
    some = next((t for t in tensors if t is not None), None)
    some = torch.empty(0) if some is None else some
    return [some.new_empty(0) if t is None else t.new_empty(t.shape) for t in tensors]


def _differentiable(operator, backward, plain: Callable, tensors: int, kept: Sequence[int], skipped: Sequence[int]):
    """Registers the gradient: `backward` on tensors, kept outputs and numbers; the plain form's if that is recorded.

    The first `tensors` inputs are tensors or None; `kept` outputs are saved; `skipped` inputs are not needed.
    """

    def save(ctx, inputs, output):
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.numbers = inputs[tensors:]
        ctx.save_for_backward(*inputs[:tensors], *[outputs[n] for n in kept])
        ctx.set_materialize_grads(False)

    def gradient(ctx, *grads):
        inputs, found = ctx.saved_tensors[:tensors], ctx.saved_tensors[tensors:]
        none = [None] * len(ctx.numbers)
        if all(g is None for g in grads):
            return *[None] * tensors, *none
        if torch.is_grad_enabled():
            return *_plain_gradients(plain, grads, inputs, ctx.numbers), *none
        needed = [t for n, t in enumerate(inputs) if n not in skipped]
        made = backward(*grads, *needed, *found, *ctx.numbers)
        return *[g if t is not None else None for g, t in zip(made, inputs)], *none

    operator.register_autograd(gradient, setup_context=save)


def _plain_gradients(plain: Callable, grads, inputs, numbers) -> list[Tensor | None]:
    """The same gradients, themselves differentiable."""
    outputs = plain(*inputs, *numbers)
    given = [(out, g) for out, g in zip(outputs, grads) if g is not None]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    made = torch.autograd.grad(
        [out for out, _ in given], wanted, [g for _, g in given], create_graph=True, allow_unused=True
    )
    found = iter(made)
    return [next(found) if t is not None and t.requires_grad else None for t in inputs]


def _plain_density(u, W, bias, mean, variance):
    if _by_moments(u, W):
        return (ChildMoments(u, W, bias).log_density(mean, variance),)
    return (dense_log_density(_by_parent(u, W, bias), mean.flatten(2), variance.flatten(2)).mT,)


def _plain_moments(u, W, bias, weights, beta, eps):
    if _by_moments(u, W):
        mean, variance = ChildMoments(u, W, bias).moments(weights, eps)
    else:
        pose = (u.shape[2], W.shape[3])
        found = dense_moments(_by_parent(u, W, bias), weights.mT, eps)
        mean, variance = (part.unflatten(2, pose) for part in found)
    return mean, variance, weights.sum(1), weights.new_empty(0) if beta is None else (weights * beta).sum(1)


def _by_moments(u: Tensor, W: Tensor) -> bool:
    return W.shape[0] == 1 and moments_pay(u.shape[2], W.shape[2], W.shape[3])


def _by_parent(u: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
    """The votes, stored: [b, j, i, a*o]."""
    dtype = form.statistics_dtype(u, W)
    votes = torch.einsum("biak,ijko->bjiao", u.to(dtype), W.to(dtype).expand(u.shape[1], -1, -1, -1))
    votes = votes if bias is None else votes + bias.to(dtype).transpose(0, 1)
    return votes.flatten(3)


def _plain_step(u, W, bias, gate, mean, variance, prior, beta, eps):
    R = (_plain_density(u, W, bias, mean, variance)[0] + prior.unsqueeze(1)).softmax(2)
    return R, *_plain_moments(u, W, bias, gate.unsqueeze(2) * R, beta, eps)


_differentiable(gaussian_density, _density_backward, _plain_density, tensors=5, kept=(), skipped=())
_differentiable(gaussian_moments, _moments_backward, _plain_moments, tensors=5, kept=(0, 1, 2), skipped=())
_differentiable(gaussian_step, _step_backward, _plain_step, tensors=8, kept=(0, 1, 2, 3), skipped=(6,))
