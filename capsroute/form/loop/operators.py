"""Dynamic and max-min routing as one operation, `capsroute::routing_loop`: the whole loop is two calls a training step.

Children are a list u [b,i,a,k] (window None), or a map u [b,n,a,k,h,w] and a window over it, whose patches are gathered
in the kernels: b is then (sample, row, column).
"""

import torch
from torch import Tensor

from capsroute.form.contractions.operators import CONTRACTIONS
from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.dispatch import reachable
from capsroute.form.loop.plain import MaxMin, Normalise, Softmax, plain_loop
from capsroute.form.operations import Operation, is_recorded
from capsroute.form.sizes import operand_dtype, precision
from capsroute.form.window import Window, cut


def fused_loop(
    votes, first: float, normalise: Normalise, iterations: int, stop_gradient: bool
) -> tuple[Tensor, Tensor] | None:
    """Poses and coefficients from the fused kernels, or None where they do not apply.

    `cr.form.explain("routing_loop", u, W, iterations)` says why, or `(..., map, W, iterations, window)`.
    """
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is None:
        return None
    u, W, window = factors
    save = torch.is_grad_enabled() and (u.requires_grad or W.requires_grad)
    how = (iterations, isinstance(normalise, Softmax), normalise.lower, normalise.upper, first, stop_gradient)
    keep = save and not is_recorded(u, W)
    return LOOP.attempt(votes.backend, u, W, *how, save, None if window is None else list(window), keep)


def is_shared(u: Tensor, W: Tensor) -> bool:
    """Whether children u [b,i,...] have one set of transforms W [1,j,k,o] together."""
    return W.shape[0] == 1 < u.shape[1]


def loses_digits(u: Tensor, W: Tensor) -> bool:
    """Whether attention, which adds up children that share transforms before they meet those, had better not: where
    float32 is multiplied in parts, sums of children keep fewer digits than those of votes."""
    return is_shared(u, W) and operand_dtype(u, W) == torch.float32 and precision() != "tf32"


def _plain(u, W, iterations, softmax, lower, upper, first, stop_gradient, save, window=None, keep=False):
    children = u if window is None else cut(u, Window(*window))
    c = torch.full((), first, dtype=statistics_dtype(u, W), device=u.device)
    return plain_loop(
        lambda q: CONTRACTIONS["agreement"](children, W, q), lambda c: CONTRACTIONS["aggregate"](c, children, W),
        c.expand(children.shape[0], children.shape[1], W.shape[1]),
        Softmax() if softmax else MaxMin(lower, upper), iterations, stop_gradient,
    )  # fmt: skip


def _fake(u, W, iterations, softmax, lower, upper, first, stop_gradient, save, window=None, keep=False):
    """Recorded graphs keep no votes: whether they would depends on how many samples there are."""
    batch, children, parents, dtype = u.shape[0], u.shape[1], W.shape[1], operand_dtype(u, W)
    if window is not None:
        rows, columns = Window(*window).positions(u.shape[4], u.shape[5])
        batch, children = batch * rows * columns, W.shape[0]
    poses = u.new_empty((batch, parents, u.shape[2], W.shape[3]), dtype=torch.float32)
    c = u.new_empty((children, parents, batch), dtype=torch.float32).permute(2, 0, 1)
    if window is None and is_shared(u, W):
        kept = poses.new_empty((2 * iterations - 1, batch, parents, *u.shape[2:]))
        queries = poses.new_empty((iterations - 1, *poses.shape))
        none = poses.new_empty(0)
        return poses, poses.new_empty((batch, children, parents)), none, queries, kept, none.clone()
    earlier = iterations - 2 if save and softmax and not stop_gradient else 0
    return (
        poses, c, poses.new_empty((iterations, *poses.shape)),
        poses.new_empty((iterations - 1, *poses.shape), dtype=dtype),
        c.new_empty((earlier, children, parents, batch), dtype=dtype), poses.new_empty(0),
    )  # fmt: skip


def _fake_backward(u, W):
    from capsroute.form.maps import empty_gradient

    return [empty_gradient(u), W.new_empty(W.shape)]


def loop_kept(u: Tensor, W: Tensor) -> slice:
    """Of the outputs, what the gradient reads: over shared transforms no coefficients, which it makes again."""
    return slice(3 if is_shared(u, W) else 1, None)


LOOP = Operation(
    "routing_loop", _plain, tensors=2, asks=(0, 1, 2, 9), results=2, kept=loop_kept, falls_back=True, fake=_fake,
    fake_backward=_fake_backward, seldom=(1,),
    schema="(Tensor u, Tensor W, int iterations, bool softmax, float lower, float upper, float first, "
    "bool stop_gradient, bool save, int[]? window=None, bool keep=False) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
