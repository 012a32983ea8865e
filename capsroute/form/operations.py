"""One mechanism for all that has kernels: an `Operation` decides, when it is called, what runs.

    inside a torch.func transform,
    or where tensors may be dual         its plain form, whose parts have every rule already
    kernels do not apply (`dispatch`)    its plain form
    a graph is recorded                  the torch.library operator `capsroute::name`
    else                                 the kernels, called without torch.library, which costs as much as they do

Derivatives are those of its kernels, second derivatives those of the plain form, made again.
"""

import functools
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor
from torch.autograd import forward_ad

from capsroute.form.dispatch import kernels_of, reachable, takes_kernels

PLAIN_TYPES = (Tensor, torch.nn.Parameter)


def is_recorded(*values: object) -> bool:
    """Whether a graph is being recorded: by a compiler, or by a subclass that stands for a tensor meanwhile."""
    stands_in = any(isinstance(t, Tensor) and type(t) not in PLAIN_TYPES for t in values)
    return stands_in or torch.compiler.is_compiling()


def is_transformed(*values: object) -> bool:
    """Whether one is a tensor inside a torch.func transform, whose values Python must not look at."""
    if torch.compiler.is_compiling():
        return False
    return any(isinstance(t, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(t) for t in values)


def look_at(tensors: tuple[Tensor | None, ...]) -> tuple[bool, bool, bool]:
    """`is_recorded`, `is_transformed` and whether one wants a gradient, in one go: every call of an operation asks.

    Inside `forward_ad.dual_level` tensors may be dual, and look as any other: kernels would lose their tangents.
    """
    compiles = torch.compiler.is_compiling()
    recorded, transformed, learned = compiles, not compiles and forward_ad._current_level >= 0, False
    for t in tensors:
        if t is None:
            continue
        if type(t) not in PLAIN_TYPES:
            recorded = True
        if not compiles and torch._C._functorch.is_functorch_wrapped_tensor(t):
            transformed = True
        if t.requires_grad:
            learned = True
    return recorded, transformed, learned


@functools.cache
def _ahead() -> ModuleType:
    """Imported where kernels can run: it imports Triton."""
    from capsroute.form import ahead

    return ahead


class Operation:
    """A function of `tensors` tensors (or None) and then numbers, given by name, by its plain form and by its kernels.

    - `plain(*inputs)` gives the outputs in torch.
    - Kernels are plugged in by name (`dispatch.register_kernel`): `forward(*inputs)` gives the outputs, and behind so
      many `results` what only the gradient needs;
      `backward(grads, tensors, kept, *numbers)` a gradient for every tensor (of no elements for None), where `kept` are
      the outputs of that slice, which may depend on the tensors. It does not know the gradients of `foreign` outputs;
      the plain form does.
      `reasons` are asked about the inputs whose places are in `asks`.
    - `schema` and `fake` (of outputs, and `fake_backward` of gradients) make the operator. Without a schema recorded
      graphs get the plain form, which a compiler fuses with what is around it.
    - `falls_back`: see `dispatch.takes_kernels`.
    - `seldom`: outputs that are mostly looked at, and not differentiated.
    """

    def __init__(
        self, name: str, plain: Callable, tensors: int, asks: tuple[int, ...] = (0,), results: int | None = None,
        kept: slice | Callable[..., slice] = slice(0), foreign: tuple[int, ...] = (), falls_back: bool = False,
        schema: str | None = None, fake: Callable | None = None, fake_backward: Callable | None = None,
        seldom: tuple[int, ...] = (),
    ):  # fmt: skip
        self.name, self.plain, self.tensors, self.asks, self.results = name, plain, tensors, asks, results
        self.kept, self.foreign, self.falls_back, self.seldom = kept, foreign, falls_back, (*foreign, *seldom)
        self.operator = None if schema is None else self._operator(schema, fake)
        self.backward_operator = None if fake_backward is None else self._backward_operator(schema, fake_backward)

    def __call__(self, *inputs, backend: str = "auto"):
        """The outputs, by whatever runs here."""
        found = self.attempt(backend, *inputs)
        return self.plain(*inputs) if found is None else found

    def attempt(self, backend: str, *inputs):
        """The outputs of the kernels, or None where the plain form is to run."""
        tensors = inputs[: self.tensors]
        recorded, transformed, learned = look_at(tensors)
        if transformed or (recorded and self.operator is None):
            return None
        if not takes_kernels(self.name, backend, [inputs[n] for n in self.asks], self.falls_back):
            return None
        return self.run(recorded, learned, *inputs)

    def run(self, recorded: bool, learned: bool, *inputs):
        """The outputs, with a derivative, whoever decided that; what `look_at` found."""
        if recorded:
            found = self.operator(*inputs)  # type: ignore[misc]
        elif learned and torch.is_grad_enabled():
            # Numbers as one: torch looks at every argument, and wants a gradient for it.
            found = _Direct.apply(self, inputs[self.tensors :], *inputs[: self.tensors])
        else:
            found = self.forward(*inputs)
        return found if self.results is None else found[: self.results]

    def forward(self, *inputs):
        return kernels_of(self.name).forward(*inputs)

    def forward_of_step(self, *inputs):
        """The outputs, where a backward pass follows: what both have to compile is compiled at once."""
        if not reachable(inputs[0].device):
            return self.forward(*inputs)
        return _ahead().together(self.forward, inputs, lambda output: self._rehearse(inputs, output))

    def _rehearse(self, inputs: tuple, output) -> None:
        """The backward pass over gradients that mean nothing, where launches of uncompiled kernels are collected."""
        outputs = output if isinstance(output, tuple) else (output,)
        used = set(range(len(outputs))[: self.results]) - set(self.seldom)
        grads = tuple(torch.empty_like(out) if n in used and out.numel() else None for n, out in enumerate(outputs))
        self.backward(grads, inputs[: self.tensors], self._kept(inputs, outputs), *inputs[self.tensors :])

    def backward(self, grads: tuple, tensors: tuple, kept: tuple, *numbers):
        return kernels_of(self.name).backward(grads, tensors, kept, *numbers)  # type: ignore[misc]

    def _kept(self, inputs: tuple, outputs: tuple) -> tuple:
        """What the gradient reads of the outputs."""
        return outputs[self.kept if isinstance(self.kept, slice) else self.kept(*inputs[: self.tensors])]

    def save(self, ctx, inputs: tuple, output) -> None:
        outputs = output if isinstance(output, tuple) else (output,)
        ctx.numbers = inputs[self.tensors :]
        ctx.save_for_backward(*inputs[: self.tensors], *self._kept(inputs, outputs))
        ctx.set_materialize_grads(False)

    def gradients(self, ctx, needed: tuple, grads: tuple, recorded: bool) -> tuple:
        """A gradient or None for every input."""
        saved = ctx.saved_tensors  # asked for once: torch.utils.checkpoint gives them a single time
        tensors, kept, numbers = saved[: self.tensors], saved[self.tensors :], ctx.numbers
        none = (None,) * len(numbers)
        if all(g is None for g in grads):
            return (*[None] * self.tensors, *none)
        if torch.is_grad_enabled() or any(grads[n] is not None for n in self.foreign):
            return *self._plain_gradients(grads, tensors, numbers), *none
        if recorded:
            made = self.backward_operator(list(grads), *tensors, list(kept), *numbers)  # type: ignore[misc]
            return *[g if t is not None else None for g, t in zip(made, tensors)], *none
        found: list[Tensor | None] = []
        for g, t in zip(self.backward(grads, tensors, kept, *numbers), tensors):
            # Autograd adds another gradient to one in place, but not to a view.
            found.append(None if t is None else g.detach() if g is not None and g._is_view() else g)
        return *found, *none

    def _plain_gradients(self, grads: tuple, tensors: tuple, numbers: tuple) -> list[Tensor | None]:
        """The same gradients by the plain form; where gradients are recorded, themselves differentiable."""
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            if not again:
                tensors = tuple(t if t is None else t.detach().requires_grad_(t.requires_grad) for t in tensors)
            outputs = self.plain(*tensors, *numbers)
            outputs = outputs if isinstance(outputs, tuple) else (outputs,)
            given = [(out, g) for out, g in zip(outputs, grads) if g is not None]
            wanted = [t for t in tensors if t is not None and t.requires_grad]
            made = torch.autograd.grad(
                [out for out, _ in given], wanted, [g for _, g in given], create_graph=again, allow_unused=True
            )
        found = iter(made)
        return [next(found) if t is not None and t.requires_grad else None for t in tensors]

    def _operator(self, schema: str, fake: Callable | None):
        operator = torch.library.custom_op(f"capsroute::{self.name}", self.forward, mutates_args=(), schema=schema)
        operator.register_fake(fake)  # type: ignore[arg-type]
        operator.register_autograd(
            lambda ctx, *grads: self.gradients(ctx, ctx.needs_input_grad, grads, True), setup_context=self.save
        )
        return operator

    def _backward_operator(self, schema: str | None, fake: Callable):
        """(grads, tensors, kept outputs, numbers) -> gradients, from the schema of the operator itself."""
        assert schema is not None
        inputs = schema[1 : schema.index(") ->")].split(", ")
        arguments = ["Tensor?[] grads", *inputs[: self.tensors], "Tensor[] kept", *inputs[self.tensors :]]

        def run(grads, *rest):
            tensors, kept, numbers = rest[: self.tensors], rest[self.tensors], rest[self.tensors + 1 :]
            return list(self.backward(grads, tensors, kept, *numbers))

        schema = f"({', '.join(arguments)}) -> Tensor[]"
        operator = torch.library.custom_op(f"capsroute::{self.name}_backward", run, mutates_args=(), schema=schema)
        operator.register_fake(lambda grads, *rest: fake(*rest[: self.tensors]))
        return operator


class _Direct(torch.autograd.Function):
    """An operation without torch.library in between."""

    @staticmethod
    def forward(ctx, operation: Operation, numbers: tuple, *tensors):
        inputs = (*tensors, *numbers)
        output = operation.forward_of_step(*inputs)
        ctx.operation = operation
        operation.save(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx, *grads):
        needed = ctx.needs_input_grad[2:]
        return None, None, *ctx.operation.gradients(ctx, needed, grads, False)[: len(needed)]
