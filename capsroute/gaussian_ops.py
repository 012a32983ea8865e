"""Gaussian questions about linear votes as torch.library operators, for where the kernels apply.

Three operators: log-density, moments, and a whole step of expectation maximisation, which keeps nothing of size
children x parents but the coefficients it returns. Second derivatives are those of the plain form, made again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from capsroute import form
from capsroute.form.ops import is_transformed
from capsroute.gaussian import plain_density, plain_moments, plain_step

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


def gaussian_density(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(vote; mean, variance) up to a constant: [b,i,j]."""
    return _call(_DENSITY, u, W, bias, mean, variance)


def gaussian_moments(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mean and variance [b,j,a,o] with weights [b,i,j or 1]; sums over children of weights, and of weights * beta."""
    return _call(_MOMENTS, u, W, bias, weights, beta, eps)


def gaussian_step(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """R [b,i,j] = softmax over parents of log-density + prior [b,j]; then the moments with weights gate [b,i] * R."""
    return _call(_STEP, u, W, bias, gate, mean, variance, prior, beta, eps)


def _density(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.density_forward(u, W, bias, mean, variance)


def _moments(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.moments_forward(u, W, bias, weights, beta, eps)


def _step(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.kernels import gaussian_passes

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
    return _poses(u, W), _poses(u, W), total, total.new_empty(0 if beta is None else total.shape)


@step_operator.register_fake
def _(u, W, bias, gate, mean, variance, prior, beta, eps):
    total = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    return _plane(u, W), _poses(u, W), _poses(u, W), total, total.new_empty(0 if beta is None else total.shape)


def _plane(u: Tensor, W: Tensor) -> Tensor:
    return u.new_empty((u.shape[0], u.shape[1], W.shape[1]), dtype=torch.float32)


def _poses(u: Tensor, W: Tensor) -> Tensor:
    """[b,j,a,o], in memory [b,a,o,j]."""
    return u.new_empty((u.shape[0], u.shape[2], W.shape[3], W.shape[1]), dtype=torch.float32).permute(0, 3, 1, 2)


def _density_backward(
    g: Tensor, u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.kernels import gaussian_passes

    return gaussian_passes.density_backward(g, u, W, bias, mean, variance)


def _moments_backward(
    g_mean: Tensor | None, g_variance: Tensor | None, g_total: Tensor | None, g_dots: Tensor | None, u: Tensor,
    W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, mean: Tensor, variance: Tensor,
    total: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.kernels import gaussian_passes

    grads, found = (g_mean, g_variance, g_total, g_dots), (mean, variance, total)
    return gaussian_passes.moments_backward(grads, u, W, bias, weights, beta, found, eps)


def _step_backward(
    g_R: Tensor | None, g_mean: Tensor | None, g_variance: Tensor | None, g_total: Tensor | None,
    g_dots: Tensor | None, u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor,
    beta: Tensor | None, R: Tensor, new_mean: Tensor, new_variance: Tensor, total: Tensor, eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.kernels import gaussian_passes

    grads, found = (g_R, g_mean, g_variance, g_total, g_dots), (new_mean, new_variance, total)
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
def _(g_mean, g_variance, g_total, g_dots, u, W, bias, weights, beta, *rest):
    return *_like(u, W, bias, weights), *_like(beta)


@step_backward_operator.register_fake
def _(g_R, g_mean, g_variance, g_total, g_dots, u, W, bias, gate, mean, variance, beta, *rest):
    prior = u.new_empty((u.shape[0], W.shape[1]), dtype=torch.float32)
    return *_like(u, W, bias, gate), _poses(u, W), _poses(u, W), prior, *_like(beta)


def _like(*tensors: Tensor | None) -> list[Tensor]:
    """Empty tensors of these shapes, of no elements for None."""
    some = next((t for t in tensors if t is not None), None)
    some = torch.empty(0) if some is None else some
    return [some.new_empty(0) if t is None else t.new_empty(t.shape) for t in tensors]


class _Operation(NamedTuple):
    """An operator, the function it is made of, and the same of its gradient; the plain form in torch.

    The first `tensors` inputs are tensors or None; `kept` outputs are saved for the gradient, which does without the
    inputs that are `skipped`.
    """

    operator: Any
    run: Callable
    backward_operator: Any
    run_backward: Callable
    plain: Callable
    tensors: int
    kept: tuple[int, ...] = ()
    skipped: tuple[int, ...] = ()

    def save(self, ctx, inputs: tuple, output) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.numbers = inputs[self.tensors :]
        ctx.save_for_backward(*inputs[: self.tensors], *[outputs[n] for n in self.kept])
        ctx.set_materialize_grads(False)

    def gradients(self, ctx, grads: tuple, backward: Callable) -> list[Tensor | None]:
        inputs, found = ctx.saved_tensors[: self.tensors], ctx.saved_tensors[self.tensors :]
        none: list[Tensor | None] = [None] * len(ctx.numbers)
        if all(g is None for g in grads):
            return [*[None] * self.tensors, *none]
        if torch.is_grad_enabled():
            return _plain_gradients(self.plain, grads, inputs, ctx.numbers) + none
        needed = [t for n, t in enumerate(inputs) if n not in self.skipped]
        made = backward(*grads, *needed, *found, *ctx.numbers)
        return [g if t is not None else None for g, t in zip(made, inputs)] + none


class _Direct(torch.autograd.Function):
    """An operation without torch.library in between, which costs as much as the kernels do."""

    @staticmethod
    def forward(ctx, operation: _Operation, *inputs):
        output = operation.run(*inputs)
        ctx.operation = operation
        operation.save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.operation.gradients(ctx, grads, ctx.operation.run_backward)


def _call(operation: _Operation, *inputs):
    """Subclasses that stand for a tensor while a graph is recorded must see the operator."""
    recorded = any(isinstance(t, Tensor) and type(t) not in (Tensor, torch.nn.Parameter) for t in inputs)
    if recorded or torch.compiler.is_compiling():
        return operation.operator(*inputs)
    return _Direct.apply(operation, *inputs)


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


_DENSITY = _Operation(
    density_operator, _density, density_backward_operator, _density_backward, plain_density, tensors=5
)
_MOMENTS = _Operation(
    moments_operator, _moments, moments_backward_operator, _moments_backward, plain_moments, tensors=5, kept=(0, 1, 2)
)
_STEP = _Operation(
    step_operator, _step, step_backward_operator, _step_backward, plain_step, tensors=8, kept=(0, 1, 2, 3),
    skipped=(6,),
)  # fmt: skip


def _register(operation: _Operation) -> None:
    operation.operator.register_autograd(
        lambda ctx, *grads: tuple(operation.gradients(ctx, grads, operation.backward_operator)),
        setup_context=operation.save,
    )


for _each in (_DENSITY, _MOMENTS, _STEP):
    _register(_each)
