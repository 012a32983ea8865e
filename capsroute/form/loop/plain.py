"""The loop of dynamic and max-min routing, one question to the votes at a time, and how it is normalised.

The logits are linear in the parents, b_ij = V_ij . (v_1 + ... + v_t), so the loop carries one accumulated query
[b,j,a,o] instead of logits [b,i,j].
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.rows.squash import squash


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


Normalise = Softmax | MaxMin


def masked_over_parents(logits: Tensor) -> Tensor:
    """Softmax over parents in which -inf is "never" and +inf "always"; a child that never goes anywhere gives nothing.

    >>> import torch
    >>> from capsroute.form.loop.plain import masked_over_parents
    >>> masked_over_parents(torch.tensor([[[-torch.inf, 0.0], [torch.inf, 0.0], [-torch.inf, -torch.inf]]]))
    tensor([[[0., 1.],
             [1., 0.],
             [0., 0.]]])
    """
    # Beside the largest number there is nothing else has a share, and unlike infinity it can be subtracted from itself.
    logits = logits.clamp_max(torch.finfo(logits.dtype).max)
    nowhere = (logits == -torch.inf).all(2, keepdim=True)
    return logits.masked_fill(nowhere, 0.0).softmax(2).masked_fill(nowhere, 0.0)


def or_one(total: Tensor) -> Tensor:
    """A divisor that is one where it would be zero."""
    return total.masked_fill(total == 0, 1.0)


class Schedule(NamedTuple):
    """What the kernels of a loop repeat, and how far back gradients go: softmax or max-min, from coefficients `first`.

    With a scale it is inverted attention: poses are normalised, and the last of them times the scale are the query. Or
    self-attention, `by_sums`: the sums themselves, times the scale, are the query, and the last are squashed.
    """

    iterations: int
    softmax: int  # 2: of logits that have a prior
    first: float
    lower: float
    upper: float
    stop_gradient: bool
    scale: float | None = None
    coefficients: bool = True  # whether the last are stored
    by_sums: bool = False

    @property
    def norm(self) -> int:
        """As `updates.updated` is told."""
        return 2 if self.by_sums else int(self.scale is not None)

    @property
    def factor(self) -> float:
        return 1.0 if self.scale is None else self.scale


@dataclass
class Prior:
    """What is added to logits [i,j], how many numbers lie between children, and where its gradient is left.

    That is the one of each sample, [i,j,b] or over shared transforms [b,i,j], until it is added up over `samples`.
    """

    given: Tensor
    stride: int
    gradient: Tensor
    samples: int | None = None

    def add_up(self) -> None:
        """Once, and before other gradients are allocated, if nothing reads those of single samples any more."""
        if self.samples is not None:
            self.gradient, self.samples = self.gradient.sum(self.samples), None


def no_prior(like: Tensor) -> Prior:
    return Prior(like, 0, like)


def plain_loop(
    agreement: Callable[[Tensor], Tensor], aggregate: Callable[[Tensor], Tensor], c: Tensor, normalise: Normalise,
    iterations: int, stop_gradient: bool, backend: str = "auto",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Poses [b,j,a,o] and coefficients, from the first coefficients c [b,i,j] (expanded)."""
    poses = query = squash(aggregate(c), (2, 3), backend)
    for iteration in range(1, iterations):
        if iteration > 1:
            query = query + poses
        logits = agreement(query.detach() if stop_gradient else query)
        c = normalise.__call__(logits)  # by its name: torch.compile of torch 2.6 traces no call of a named tuple
        poses = squash(aggregate(c.detach() if stop_gradient else c), (2, 3), backend)
    return poses, c
