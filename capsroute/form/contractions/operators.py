"""The four contractions as torch.library operators: differentiable any number of times, compilable, exportable.

Phi is linear in each argument, so the vector-Jacobian product of each contraction is made of the other three; that is
all the autograd there is. Kernels plug in behind `dispatch.choose`.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from capsroute.form import dispatch
from capsroute.form.contractions import plain as reference

__all__ = [
    "aggregate",
    "agreement",
    "call",
    "decompositions",
    "grad_children",
    "grad_transforms",
    "is_recorded",
    "is_transformed",
]


@torch.library.custom_op("capsroute::agreement", mutates_args=())
def agreement(u: Tensor, W: Tensor, q: Tensor, backend: str = "auto") -> Tensor:
    return dispatch.choose("agreement", backend, u, W, q)


@torch.library.custom_op("capsroute::aggregate", mutates_args=())
def aggregate(c: Tensor, u: Tensor, W: Tensor, backend: str = "auto") -> Tensor:
    return dispatch.choose("aggregate", backend, c, u, W)


@torch.library.custom_op("capsroute::grad_children", mutates_args=())
def grad_children(c: Tensor, W: Tensor, q: Tensor, backend: str = "auto") -> Tensor:
    return dispatch.choose("grad_children", backend, c, W, q)


@torch.library.custom_op("capsroute::grad_transforms", mutates_args=())
def grad_transforms(c: Tensor, u: Tensor, q: Tensor, shared: bool, backend: str = "auto") -> Tensor:
    return dispatch.choose("grad_transforms", backend, c, u, q, shared)


@agreement.register_fake
def _(u, W, q, backend="auto"):
    return u.new_empty(u.shape[0], u.shape[1], W.shape[1], dtype=reference.statistics_dtype(u, W, q))


@aggregate.register_fake
def _(c, u, W, backend="auto"):
    shape = (u.shape[0], W.shape[1], u.shape[2], W.shape[3])
    return u.new_empty(shape, dtype=reference.statistics_dtype(c, u, W))


@grad_children.register_fake
def _(c, W, q, backend="auto"):
    shape = (c.shape[0], c.shape[1], q.shape[2], W.shape[2])
    return c.new_empty(shape, dtype=reference.statistics_dtype(c, W, q))


@grad_transforms.register_fake
def _(c, u, q, shared, backend="auto"):
    shape = (1 if shared else u.shape[1], c.shape[2], u.shape[3], q.shape[3])
    return c.new_empty(shape, dtype=reference.statistics_dtype(c, u, q))


def _save(ctx, inputs, output):
    *tensors, ctx.backend = inputs
    ctx.save_for_backward(*[t for t in tensors if isinstance(t, Tensor)])


def _agreement_backward(ctx, need, g):
    u, W, q = ctx.saved_tensors
    du = call(grad_children, g, W, q, ctx.backend).to(u.dtype) if need[0] else None
    dW = call(grad_transforms, g, u, q, W.shape[0] == 1, ctx.backend).to(W.dtype) if need[1] else None
    dq = call(aggregate, g, u, W, ctx.backend).to(q.dtype) if need[2] else None
    return du, dW, dq, None


def _aggregate_backward(ctx, need, g):
    c, u, W = ctx.saved_tensors
    dc = call(agreement, u, W, g, ctx.backend).to(c.dtype) if need[0] else None
    du = call(grad_children, c, W, g, ctx.backend).to(u.dtype) if need[1] else None
    dW = call(grad_transforms, c, u, g, W.shape[0] == 1, ctx.backend).to(W.dtype) if need[2] else None
    return dc, du, dW, None


def _grad_children_backward(ctx, need, g):
    c, W, q = ctx.saved_tensors
    dc = call(agreement, g, W, q, ctx.backend).to(c.dtype) if need[0] else None
    dW = call(grad_transforms, c, g, q, W.shape[0] == 1, ctx.backend).to(W.dtype) if need[1] else None
    dq = call(aggregate, c, g, W, ctx.backend).to(q.dtype) if need[2] else None
    return dc, dW, dq, None


def _grad_transforms_backward(ctx, need, g):
    c, u, q = ctx.saved_tensors
    dc = call(agreement, u, g, q, ctx.backend).to(c.dtype) if need[0] else None
    du = call(grad_children, c, g, q, ctx.backend).to(u.dtype) if need[1] else None
    dq = call(aggregate, c, u, g, ctx.backend).to(q.dtype) if need[2] else None
    return dc, du, dq, None, None


_BACKWARD: dict[Any, Callable] = {
    agreement: _agreement_backward,
    aggregate: _aggregate_backward,
    grad_children: _grad_children_backward,
    grad_transforms: _grad_transforms_backward,
}


def _register_autograd(op, backward: Callable) -> None:
    op.register_autograd(lambda ctx, g: backward(ctx, ctx.needs_input_grad, g), setup_context=_save)


for _op, _backward in _BACKWARD.items():
    _register_autograd(_op, _backward)


class _Direct(torch.autograd.Function):
    """An operator without torch.library in between, which takes the host as long as a small layer takes the chip."""

    @staticmethod
    def forward(ctx, op, *args):
        ctx.op = op
        _save(ctx, args, None)
        return _run(op, *args)

    @staticmethod
    def backward(ctx, g):
        return None, *_BACKWARD[ctx.op](ctx, ctx.needs_input_grad[1:], g)


_PLAIN: dict[Any, Callable] = {
    agreement: reference.agreement,
    aggregate: reference.aggregate,
    grad_children: reference.grad_children,
    grad_transforms: reference.grad_transforms,
}


def call(op, *args):
    """Run one of the four operators: itself where a graph is recorded, else the function behind it.

    torch.library operators with an autograd formula cannot be entered from torch.func.grad: inside its transforms the
    plain form runs, which is made of ops that have every rule already.
    """
    if any(map(is_transformed, args)):
        return _PLAIN[op](*_without_backend(args))
    if is_recorded(*args):
        return op(*args)
    graded = torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in args)
    return _Direct.apply(op, *args) if graded else _run(op, *args)


def _run(op, *args) -> Tensor:
    *operands, backend = args
    return dispatch.choose(_PLAIN[op].__name__, backend, *operands)


def is_recorded(*values: object) -> bool:
    """Whether a graph is being recorded: by a compiler, or by a subclass that stands for a tensor meanwhile."""
    stands_in = any(isinstance(t, Tensor) and type(t) not in (Tensor, torch.nn.Parameter) for t in values)
    return stands_in or torch.compiler.is_compiling()


def is_transformed(value: object) -> bool:
    """Whether this is a tensor inside a torch.func transform, whose values Python must not look at."""
    if torch.compiler.is_compiling():
        return False
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


def _without_backend(args: tuple) -> tuple:
    return tuple(arg for arg in args if not isinstance(arg, str))


def decompositions() -> dict:
    """Each operator in terms of plain torch ones, for `ExportedProgram.run_decompositions` and for ONNX.

    >>> import capsroute as cr
    >>> len(cr.form.decompositions())
    4
    """

    return {op._opoverload: _decompose(plain) for op, plain in _PLAIN.items()}


def _decompose(plain):
    return lambda *args: plain(*_without_backend(args))
