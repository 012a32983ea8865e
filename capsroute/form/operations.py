"""A differentiable operation made of kernels: a torch.library operator in graphs, a plain function call elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from capsroute.form.contractions.operators import is_recorded

__all__ = ["Operation"]


class Operation:
    """A function, its gradient, and the plain form in torch whose gradient stands in where that is differentiated.

    The first `tensors` inputs are tensors or None, the rest numbers. `kept` outputs are saved for the gradient, which
    is called with the gradients of the outputs (or None), the inputs that are not `skipped`, what was kept, and the
    numbers; it returns a gradient for every tensor. It does not know those of `foreign` outputs, which the plain form
    sends back. Both functions come as they are and as operators.
    """

    def __init__(
        self, operator: Any, run: Callable, backward_operator: Any, run_backward: Callable, plain: Callable,
        tensors: int, kept: tuple[int, ...] = (), skipped: tuple[int, ...] = (), foreign: tuple[int, ...] = (),
    ):  # fmt: skip
        self.operator, self.run, self.run_backward, self.plain = operator, run, run_backward, plain
        self.tensors, self.kept, self.skipped, self.foreign = tensors, kept, skipped, foreign
        operator.register_autograd(
            lambda ctx, *grads: tuple(self.gradients(ctx, grads, backward_operator)), setup_context=self.save
        )

    def __call__(self, *inputs):
        return self.operator(*inputs) if is_recorded(*inputs) else _Direct.apply(self, *inputs)

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
        if torch.is_grad_enabled() or any(grads[n] is not None for n in self.foreign):
            return self._plain_gradients(grads, inputs, ctx.numbers) + none
        needed = [t for n, t in enumerate(inputs) if n not in self.skipped]
        made = backward(*grads, *needed, *found, *ctx.numbers)
        return [g if t is not None else None for g, t in zip(made, inputs)] + none

    def _plain_gradients(self, grads: tuple, inputs: tuple, numbers: tuple) -> list[Tensor | None]:
        """The same gradients by the plain form; where gradients are recorded, themselves differentiable."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            if not again:
                inputs = tuple(t if t is None else t.detach().requires_grad_(t.requires_grad) for t in inputs)
            outputs = self.plain(*inputs, *numbers)
            given = [(out, g) for out, g in zip(outputs, grads) if g is not None]
            wanted = [t for t in inputs if t is not None and t.requires_grad]
            made = torch.autograd.grad(
                [out for out, _ in given], wanted, [g for _, g in given], create_graph=again, allow_unused=True
            )
        found = iter(made)
        return [next(found) if t is not None and t.requires_grad else None for t in inputs]


class _Direct(torch.autograd.Function):
    """An operation without torch.library in between, which costs as much as the kernels do."""

    @staticmethod
    def forward(ctx, operation: Operation, *inputs):
        output = operation.run(*inputs)
        ctx.operation = operation
        operation.save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, *grads):
        return None, *ctx.operation.gradients(ctx, grads, ctx.operation.run_backward)
