"""From logits to coefficients in the loop of dynamic and max-min routing: two callables, which the kernels know too."""

from typing import NamedTuple

import torch
from torch import Tensor


class Softmax(NamedTuple):
    """What a child gives away sums to one (Sabour 2017, equation 3)."""

    lower: float = 0.0
    upper: float = 1.0

    def __call__(self, logits: Tensor, axis: int = 2) -> Tensor:
        return logits.softmax(axis)

    def with_gradient(self, logits: Tensor, g: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The coefficients, and the gradient of the logits from theirs."""
        c = logits.softmax(axis)
        weighted = c * g
        return c, weighted - c * weighted.sum(axis, keepdim=True)


class MaxMin(NamedTuple):
    """Each child's logits stretched over [lower, upper] across parents (Zhao 2019, equation 2)."""

    lower: float = 0.0
    upper: float = 1.0

    def __call__(self, logits: Tensor, axis: int = 2) -> Tensor:
        low, high = logits.amin(axis, keepdim=True), logits.amax(axis, keepdim=True)
        equal = high == low
        whole = torch.where(equal, 1.0, high - low)
        # In units of the range, which need no gradient: one over the square of a short range is not finite.
        stretched = (logits - low) / whole.detach() / (whole / whole.detach())
        return self.lower + torch.where(equal, 1.0, stretched) * (self.upper - self.lower)

    def with_gradient(self, logits: Tensor, g: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """The coefficients, and the gradient of the logits from theirs."""
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            c = self(leaf, axis)
            return c.detach(), torch.autograd.grad(c, leaf, g)[0]
