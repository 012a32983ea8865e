"""Float32 against float64, for inputs from 1e-20 to 1e15: values, and gradients of every input."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

SIZES = (1e-20, 1e-15, 1e-10, 1e10, 1e15)


def assert_right_in_float32(outputs: Callable[..., Sequence[Tensor]], inputs: list[Tensor], limit: float) -> None:
    """All is finite, and off by no more than the limit of the largest number that belongs to the same output."""
    ours, exact = (
        _sensitivities(outputs, [t.float().to(dtype) for t in inputs]) for dtype in (torch.float32, torch.float64)
    )
    for n, (found, right) in enumerate(zip(ours, exact)):
        largest = max(tensor.abs().max() for tensor in right)
        for place, (mine, theirs) in enumerate(zip(found, right)):
            what = f"output {n}" if place == 0 else f"gradient of output {n} by input {place - 1}"
            assert mine.isfinite().all(), f"{what} is not finite"
            off = ((mine - theirs).abs().max() / largest).item()
            assert off <= limit, f"{what} is off by {off:.1e}"


def _sensitivities(outputs: Callable[..., Sequence[Tensor]], inputs: list[Tensor]) -> list[list[Tensor]]:
    """Each output, and what its sum with random weights gains by a relative change of an input."""
    inputs = [tensor.clone().requires_grad_() for tensor in inputs]
    found = []
    for out in outputs(*inputs):
        weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(5)).to(out)
        grads = torch.autograd.grad(out, inputs, weights, retain_graph=True, materialize_grads=True)
        found.append([out.detach(), *(g.double() * x.detach().abs().max() for g, x in zip(grads, inputs))])
    return found
