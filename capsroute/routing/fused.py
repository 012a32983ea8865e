"""Dynamic and max-min routing as one operator, `capsroute::routing_loop`, where the fused kernels apply.

The operator is the whole loop: a training step makes two calls instead of dozens. Its second derivative is that of the
plain loop, which is made again from the same operands. Children are a list u [b,i,a,k] (window None), or a map
u [b,n,a,k,h,w] and a window over it, whose patches are gathered in the kernels: b is then (sample, row, column).
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from capsroute.form.contractions.operators import is_recorded, is_transformed
from capsroute.form.dispatch import applies
from capsroute.form.window import Window
from capsroute.patches import PatchVotes
from capsroute.routing.normalise import max_min, over_parents
from capsroute.votes import LinearVotes, Votes

__all__ = ["fused_loop"]


def fused_loop(
    votes: Votes, first: float, normalise: Callable[[Tensor], Tensor], iterations: int, stop_gradient: bool
) -> tuple[Tensor, Tensor] | None:
    """Poses and coefficients from the fused kernels, or None where they do not apply.

    `cr.form.explain("routing_loop", u, W, iterations)` says why, or `(..., map, W, iterations, window)`.
    """
    kind = _kind(normalise)
    if kind is None or not isinstance(votes, LinearVotes) or votes.backend == "torch":
        return None
    if isinstance(votes, PatchVotes):
        u, W, window = votes.map, votes.W, votes.window
    else:
        (u, W), window = votes.operands(), None
    if is_transformed(u) or is_transformed(W) or not applies("routing_loop", u, W, iterations, window):
        return None
    save = torch.is_grad_enabled() and (u.requires_grad or W.requires_grad)
    how = (iterations, *kind, first, stop_gradient)
    places = None if window is None else list(window)
    if not is_recorded(u, W):
        return _Loop.apply(u, W, how, save, places)
    poses, c, *_ = routing_loop(u, W, *how, save, places)
    return poses, c


def _kind(normalise: Callable[[Tensor], Tensor]) -> tuple[bool, float, float] | None:
    """(softmax, lower, upper), if it is one the kernels know."""
    if normalise is over_parents:
        return True, 0.0, 1.0
    if isinstance(normalise, functools.partial) and normalise.func is max_min:
        return False, normalise.keywords["lower"], normalise.keywords["upper"]
    return None


def _forward(
    u: Tensor, W: Tensor, iterations: int, softmax: bool, lower: float, upper: float, first: float, stop_gradient: bool,
    save: bool, window: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    from capsroute.form.loop import calls as loop

    how = loop.Schedule(iterations, softmax, first, lower, upper, stop_gradient)
    return loop.loop_forward(u, W, how, save, None if window is None else Window(*window))


routing_loop = torch.library.custom_op("capsroute::routing_loop", _forward, mutates_args=())


@routing_loop.register_fake
def _(u, W, iterations, softmax, lower, upper, first, stop_gradient, save, window=None):
    from capsroute.form.plan import operand_dtype

    batch, children, parents, dtype = u.shape[0], u.shape[1], W.shape[1], operand_dtype(u, W)
    if window is not None:
        rows, columns = Window(*window).positions(u.shape[4], u.shape[5])
        batch, children = batch * rows * columns, W.shape[0]
    poses = u.new_empty((batch, parents, u.shape[2], W.shape[3]), dtype=torch.float32)
    c = u.new_empty((children, parents, batch), dtype=torch.float32).permute(2, 0, 1)
    earlier = iterations - 2 if save and softmax and not stop_gradient else 0
    return (
        poses, c, poses.new_empty((iterations, *poses.shape)),
        poses.new_empty((iterations - 1, *poses.shape), dtype=dtype),
        c.new_empty((earlier, children, parents, batch), dtype=dtype),
    )  # fmt: skip


def _backward(
    g_poses: Tensor | None, g_c: Tensor | None, u: Tensor, W: Tensor, c: Tensor, sums: Tensor, queries: Tensor,
    earlier: Tensor, iterations: int, softmax: bool, lower: float, upper: float, first: float, stop_gradient: bool,
    window: list[int] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    from capsroute.form.loop import calls as loop

    how = loop.Schedule(iterations, softmax, first, lower, upper, stop_gradient)
    saved = (c, sums, queries, earlier)
    return loop.loop_backward(g_poses, g_c, u, W, saved, how, None if window is None else Window(*window))


routing_loop_backward = torch.library.custom_op("capsroute::routing_loop_backward", _backward, mutates_args=())


@routing_loop_backward.register_fake
def _(g_poses, g_c, u, W, *saved):
    from capsroute.form.maps import empty_gradient

    return u.new_empty(u.shape) if u.dim() == 4 else empty_gradient(u), W.new_empty(W.shape)


def _save(ctx, inputs, output):
    u, W, *ctx.how, _, ctx.window = inputs
    ctx.save_for_backward(u, W, *output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx, g_poses, g_c, backward: Callable):
    u, W, *saved = ctx.saved_tensors
    if g_poses is None and g_c is None:
        return None, None
    if torch.is_grad_enabled():
        return _plain_backward(g_poses, g_c, u, W, ctx.window, *ctx.how)
    return backward(g_poses, g_c, u, W, *saved, *ctx.how, ctx.window)


def _operator_backward(ctx, g_poses, g_c, *_):
    return *_gradients(ctx, g_poses, g_c, routing_loop_backward), *[None] * 8


routing_loop.register_autograd(_operator_backward, setup_context=_save)


class _Loop(torch.autograd.Function):
    """The operator without torch.library in between, which costs as much as the kernels do for small batches."""

    @staticmethod
    def forward(ctx, u: Tensor, W: Tensor, how: tuple, save: bool, window: list[int] | None):
        poses, c, *saved = _forward(u, W, *how, save, window)  # type: ignore[call-arg]
        ctx.how, ctx.window = how, window
        ctx.save_for_backward(u, W, c, *saved)
        ctx.set_materialize_grads(False)
        return poses, c

    @staticmethod
    def backward(ctx, g_poses, g_c):
        return *_gradients(ctx, g_poses, g_c, _backward), None, None, None


def _plain_backward(g_poses, g_c, u, W, window, iterations, softmax, lower, upper, first, stop_gradient):
    """The same gradients, themselves differentiable: those of the plain loop over the four contractions."""
    from capsroute.routing.accumulated import plain_loop

    normalise = over_parents if softmax else functools.partial(max_min, lower=lower, upper=upper)
    votes = LinearVotes(u, W) if window is None else PatchVotes(u, W, Window(*window)).hoisted()
    outputs = plain_loop(votes, first, normalise, iterations, stop_gradient)
    given = [(out, g) for out, g in zip(outputs, (g_poses, g_c)) if g is not None]
    wanted = [t for t in (u, W) if t.requires_grad]
    found = iter(torch.autograd.grad([out for out, _ in given], wanted, [g for _, g in given], create_graph=True))
    return [next(found) if t.requires_grad else None for t in (u, W)]
