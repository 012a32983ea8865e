"""One step of inverted attention as one operator, `capsroute::attention_step`, where the fused kernels apply.

Nothing of size children x parents is kept between forward and backward. The second derivative is that of the plain
step, which is made again from the same operands.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from capsroute import form
from capsroute.form.ops import is_transformed
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
    if any(map(is_transformed, (u, W, parents))) or form.explain("attention_step", u, W, window):
        return None
    sums, c = attention_step(u, W, parents, scale, list(window), coefficients)
    return sums, c if coefficients else None


def plain_step(votes: Votes, parents: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """The same by the contractions."""
    # Scaling the parents, not the agreement, touches [b,j,a,o] instead of [b,i,j].
    c = over_parents(votes.agreement(parents if scale == 1 else parents * scale))
    return votes.aggregate(c), c


@torch.library.custom_op("capsroute::attention_step", mutates_args=())
def attention_step(
    u: Tensor, W: Tensor, parents: Tensor, scale: float, window: list[int], coefficients: bool
) -> tuple[Tensor, Tensor]:
    from capsroute.form.kernels import attention_step as kernels

    return kernels.attention_forward(u, W, parents, scale, Window(*window), coefficients)


@attention_step.register_fake
def _(u, W, parents, scale, window, coefficients):
    shape = (parents.shape[0], W.shape[0], W.shape[1]) if coefficients else (0,)
    return parents.new_empty(parents.shape, dtype=torch.float32), parents.new_empty(shape, dtype=torch.float32)


@torch.library.custom_op("capsroute::attention_step_backward", mutates_args=())
def attention_step_backward(
    g: Tensor, u: Tensor, W: Tensor, parents: Tensor, scale: float, window: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    from capsroute.form.kernels import attention_step as kernels

    return kernels.attention_backward(g, u, W, parents, scale, Window(*window))


@attention_step_backward.register_fake
def _(g, u, W, parents, scale, window):
    from capsroute.form.kernels.attention_step import empty_gradient

    return empty_gradient(u), W.new_empty(W.shape), parents.new_empty(parents.shape)


def _save(ctx, inputs, output):
    u, W, parents, ctx.scale, ctx.window, _ = inputs
    ctx.save_for_backward(u, W, parents)
    ctx.set_materialize_grads(False)


def _backward(ctx, g, g_c):
    u, W, parents = ctx.saved_tensors
    if g is None and g_c is None:
        return (None,) * 6
    backward = attention_step_backward if g_c is None and not torch.is_grad_enabled() else _plain_backward(g_c)
    return *backward(g, u, W, parents, ctx.scale, ctx.window), None, None, None


attention_step.register_autograd(_backward, setup_context=_save)


def _plain_backward(g_c: Tensor | None) -> Callable[..., list[Tensor | None]]:
    """The same gradients by the contractions: themselves differentiable, and from the coefficients' gradient too."""

    def backward(g, u, W, parents, scale, window):
        again = torch.is_grad_enabled()
        with torch.enable_grad():
            u, W, parents = leaves = [t if again else t.detach().requires_grad_() for t in (u, W, parents)]
            outputs = plain_step(PatchVotes(u, W, Window(*window)).hoisted(), parents.float(), scale)
            given = [(out, grad) for out, grad in zip(outputs, (g, g_c)) if grad is not None]
            wanted = [t for t in leaves if t.requires_grad]
            found = iter(torch.autograd.grad([o for o, _ in given], wanted, [x for _, x in given], create_graph=again))
        return [next(found) if t.requires_grad else None for t in leaves]

    return backward
