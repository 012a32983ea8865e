"""The four contractions as operations: differentiable any number of times, compilable, exportable.

Phi(c, u, W, q) is linear in each argument, and each contraction is its derivative by the argument it leaves out. So the
vector-Jacobian product by one operand is the contraction that leaves *that* one out, with the gradient in the place of
the argument that was left out before. That is all the autograd the contractions need, and it stores no votes: unlike
other operations these run as they are on every device, with or without kernels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from capsroute.form.checks import LETTERS
from capsroute.form.contractions import plain
from capsroute.form.dispatch import check_backend, kernels_of, takes_kernels
from capsroute.form.operations import Operation, look_at

# Elements of the one large factor that per-child transforms need at a time: 16 MiB in float32 stays near the cache.
CHUNK_ELEMENTS = 1 << 22

ARGUMENTS = "cuWq"


class Contraction(Operation):
    """The derivative of Phi by one argument. Operands are the others and, by W, whether transforms are shared."""

    def __init__(self, name: str, by: str):
        self.by, self.given = by, ARGUMENTS.replace(by, "")
        shared = ", bool shared" if by == "W" else ""
        tensors = ", ".join(f"Tensor {letter}" for letter in self.given)
        schema = f'({tensors}{shared}, str backend="auto") -> Tensor'
        # Which operand's which axis has the size of an index letter; W says nothing of i: its transforms may be shared.
        self.places = {
            axis: (n, at)
            for n, x in enumerate(self.given)
            for at, axis in enumerate(LETTERS[x])
            if (x, axis) != ("W", "i")
        }
        super().__init__(name, getattr(plain, name), 3, schema=schema, fake=self._fake)

    def __call__(self, *operands, backend: str = "auto") -> Tensor:
        recorded, transformed, learned = look_at(operands[:3])
        if transformed:
            return self.plain(*operands)
        return self.run(recorded, learned, *operands, check_backend(backend))

    def forward(self, *inputs) -> Tensor:
        # torch.library leaves out an argument that is the default.
        *operands, backend = inputs if isinstance(inputs[-1], str) else (*inputs, "auto")
        if takes_kernels(self.name, backend, operands):
            return kernels_of(self.name).forward(*operands)
        # Contiguous are the strides that compiled code is promised.
        return self.plain(*operands, chunk=self._chunk(operands)).contiguous()

    def _rehearse(self, inputs: tuple, output) -> None:
        found, backend = dict(zip(self.given, inputs)), inputs[-1] if isinstance(inputs[-1], str) else "auto"
        for x in self.given:
            if found[x].requires_grad:
                self._gradient(x, found, torch.empty_like(output), backend)

    def gradients(self, ctx, needed: tuple, grads: tuple, recorded: bool) -> tuple:
        found = dict(zip(self.given, ctx.saved_tensors))
        made = [self._gradient(x, found, grads[0], ctx.numbers[-1]) if n else None for x, n in zip(self.given, needed)]
        return *made, *[None] * len(ctx.numbers)

    def _gradient(self, by: str, found: dict[str, Tensor], g: Tensor | None, backend: str) -> Tensor | None:
        """By one of the operands."""
        if g is None:
            return None
        arguments = {**found, self.by: g}
        shared = (found["W"].shape[0] == 1,) if by == "W" else ()
        contraction = next(other for other in CONTRACTIONS.values() if other.by == by)
        operands = *[arguments[x] for x in ARGUMENTS if x != by], *shared
        return contraction._rounded(found[by].dtype, backend, *operands)

    def _rounded(self, dtype: torch.dtype, backend: str, *operands) -> Tensor:
        """The contraction in a dtype: one by u or W is born in it, unless a graph is to have the sums themselves."""
        direct = self.by in "uW" and not (torch.is_grad_enabled() or any(look_at(operands[:3])[:2]))
        if direct and takes_kernels(self.name, backend, operands):
            return kernels_of(self.name).forward(*operands, dtype)
        return self(*operands, backend=backend).to(dtype)

    def _sizes(self, letters: str, operands: Sequence[Tensor]) -> list[int]:
        """Of index letters."""
        return [operands[n].shape[at] for n, at in map(self.places.__getitem__, letters)]

    def _fake(self, *inputs) -> Tensor:
        shape = self._sizes(LETTERS[self.by], inputs)
        if self.by == "W" and inputs[3]:
            shape[0] = 1
        return inputs[0].new_empty(shape, dtype=plain.statistics_dtype(*inputs[:3]))

    def _chunk(self, operands) -> int | None:
        """How many children at a time keep the largest factor under CHUNK_ELEMENTS; None when nothing is that large."""
        shared = operands[3] if self.by == "W" else operands[self.given.index("W")].shape[0] == 1
        if shared:
            return None
        b, a, j, k, o = self._sizes("bajko", operands)
        per_child = b * a * j * min(k, o)
        return None if per_child == 0 else max(1, CHUNK_ELEMENTS // per_child)


CONTRACTIONS = {
    name: Contraction(name, by)
    for name, by in (("agreement", "c"), ("aggregate", "q"), ("grad_children", "u"), ("grad_transforms", "W"))
}


def decompositions() -> dict:
    """Each operator in terms of plain torch ones, for `ExportedProgram.run_decompositions` and for ONNX.

    >>> import capsroute as cr
    >>> len(cr.form.decompositions())
    4
    """
    return {each.operator._opoverload: _without_backend(each.plain) for each in CONTRACTIONS.values()}  # type: ignore


def _without_backend(plain):
    return lambda *args: plain(*(arg for arg in args if not isinstance(arg, str)))
