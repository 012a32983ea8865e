"""One step of inverted attention as one operator, `capsroute::attention_step`, where the fused kernels apply.

Nothing of size children x parents is kept between forward and backward. The second derivative is that of the plain
step, which is made again from the same operands.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.form.contractions.operators import is_transformed
from capsroute.form.dispatch import applies
from capsroute.form.operations import Operation
from capsroute.form.window import WHOLE, Window
from capsroute.patches import PatchVotes
from capsroute.routing.normalise import over_parents
from capsroute.votes import LinearVotes, Votes

__all__ = ["fused_step", "plain_step"]


def fused_step(votes: Votes, parents: Tensor, scale: float, coefficients: bool) -> tuple[Tensor, Tensor | None] | None:
    """Sums of votes and coefficients from the fused kernels, or None where they do not apply.

    `cr.form.explain("attention_step", map, W, window)` says why.
    """
    if not isinstance(votes, LinearVotes) or votes.backend == "torch":
        return None
    if isinstance(votes, PatchVotes):
        u, W, window = votes.map, votes.W, votes.window
    else:
        (u, W), window = votes.operands(), WHOLE
        u = u[..., None, None]
    if any(map(is_transformed, (u, W, parents))) or not applies("attention_step", u, W, window):
        return None
    sums, c = _STEP(u, W, parents, scale, list(window), coefficients)
    return sums, c if coefficients else None


def plain_step(votes: Votes, parents: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same by the contractions."""
    # Scaling the parents, not the agreement, touches [b,j,a,o] instead of [b,i,j].
    c = over_parents(votes.agreement(parents if scale == 1 else parents * scale))
    return votes.aggregate(c), c


def _forward(
    u: Tensor, W: Tensor, parents: Tensor, scale: float, window: list[int], coefficients: bool
) -> tuple[Tensor, Tensor]:
    from capsroute.form.attention import calls as kernels

    return kernels.attention_forward(u, W, parents, scale, Window(*window), coefficients)


def _backward(
    g: Tensor, g_c: Tensor | None, u: Tensor, W: Tensor, parents: Tensor, scale: float, window: list[int],
    coefficients: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.attention import calls as kernels

    return kernels.attention_backward(g, u, W, parents, scale, Window(*window))


def _plain(
    u: Tensor, W: Tensor, parents: Tensor, scale: float, window: list[int], coefficients: bool
) -> tuple[Tensor, Tensor]:
    return plain_step(PatchVotes(u, W, Window(*window)).hoisted(), parents.float(), scale)


_operator = torch.library.custom_op("capsroute::attention_step", _forward, mutates_args=())
_backward_operator = torch.library.custom_op("capsroute::attention_step_backward", _backward, mutates_args=())


@_operator.register_fake
def _(u, W, parents, scale, window, coefficients):
    shape = (parents.shape[0], W.shape[0], W.shape[1]) if coefficients else (0,)
    return parents.new_empty(parents.shape, dtype=torch.float32), parents.new_empty(shape, dtype=torch.float32)


@_backward_operator.register_fake
def _(g, g_c, u, W, parents, scale, window, coefficients):
    from capsroute.form.maps import empty_gradient

    return empty_gradient(u), W.new_empty(W.shape), parents.new_empty(parents.shape)


# The kernels know no gradient of the coefficients.
_STEP = Operation(_operator, _forward, _backward_operator, _backward, _plain, tensors=3, foreign=(1,))
