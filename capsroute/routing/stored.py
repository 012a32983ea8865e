"""Dynamic and max-min routing over stored votes, with one gradient of the votes for all iterations together.

On a CPU small votes are stored (`capsroute.votes`). The derivative that autograd would take makes a tensor as large as
the votes in every contraction and adds them up; here it is one product. With coefficients c_t, gradients s'_t of the
sums, gradients b'_t of the logits and queries q_t,

    V'_ij = sum_t c_t,ij s'_t,j + b'_t,ij q_t,j
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from capsroute.form.contractions.operators import is_transformed
from capsroute.routing.normalise import max_min, over_parents
from capsroute.votes import DenseVotes, LinearVotes, Votes

__all__ = ["stored_loop"]

Normalise = Callable[[Tensor], Tensor]


def stored_loop(
    votes: Votes, first: float, normalise: Normalise, iterations: int, stop_gradient: bool
) -> tuple[Tensor, Tensor] | None:
    """Poses and coefficients, or None where votes are not stored or the normalisation has no derivative here."""
    if stop_gradient or iterations == 1 or not (normalise is over_parents or _is_max_min(normalise)):
        return None
    found = votes.cheapest() if isinstance(votes, LinearVotes) else votes
    if not isinstance(found, DenseVotes):
        return None
    V = found.by_parent
    if V.device.type != "cpu" or torch.compiler.is_compiling() or not _is_plain(V):
        return None
    poses, c = _Loop.apply(V, first, normalise, iterations)
    return poses.unflatten(2, (votes.rows, votes.columns)), c.mT


def _is_max_min(normalise: Normalise) -> bool:
    return isinstance(normalise, functools.partial) and normalise.func is max_min


def _is_plain(V: Tensor) -> bool:
    """Neither inside a torch.func transform nor dual: those take the derivative of each contraction."""
    forward_mode = torch.autograd.forward_ad._current_level >= 0
    return type(V) is Tensor and not forward_mode and not is_transformed(V)


class _Loop(torch.autograd.Function):
    """V [b,j,i,p] -> poses [b,j,p] and coefficients [b,j,i]; p counts pose rows and columns together."""

    @staticmethod
    def forward(ctx, V: Tensor, first: float, normalise: Normalise, iterations: int):
        sums: list[Tensor] = [first * V.sum(2)]
        queries: list[Tensor] = []
        logits: list[Tensor] = []
        poses = squashed(sums[0])
        for _ in range(1, iterations):
            queries.append(queries[-1] + poses if queries else poses)
            logits.append(_dot(V, queries[-1]))
            c = logits[-1].softmax(1) if normalise is over_parents else normalise(logits[-1].mT).mT
            sums.append(torch.matmul(c.unsqueeze(2), V).squeeze(2))
            poses = squashed(sums[-1])
        ctx.how = first, normalise, iterations
        ctx.save_for_backward(V, *sums, *queries, *logits)
        ctx.set_materialize_grads(False)
        return poses, c

    @staticmethod
    def backward(ctx, g_poses, g_c):
        V, *saved = ctx.saved_tensors
        first, normalise, iterations = ctx.how
        if g_poses is None and g_c is None:
            return None, None, None, None
        if torch.is_grad_enabled():
            return _plain_gradient(V, g_poses, g_c, *ctx.how), None, None, None
        sums, queries, logits = saved[:iterations], saved[iterations : 2 * iterations - 1], saved[2 * iterations - 1 :]
        g = torch.zeros_like(sums[0]) if g_poses is None else g_poses
        left: list[Tensor] = []  # [b, j, i], times
        right: list[Tensor] = []  # [b, j, p]: the votes' gradient
        total = None
        for t in range(iterations - 1, 0, -1):
            gs = squashed_gradient(sums[t], g)
            gc = _dot(V, gs)
            c, gl = _normalised(logits[t - 1], gc if g_c is None or t < iterations - 1 else gc + g_c, normalise)
            gq = torch.matmul(gl.unsqueeze(2), V).squeeze(2)
            g = total = gq if total is None else total + gq
            left, right = [*left, c, gl], [*right, gs, queries[t - 1]]
        gs = squashed_gradient(sums[0], g) * first
        left, right = [*left, torch.ones_like(left[0])], [*right, gs]
        return torch.matmul(torch.stack(left, 3), torch.stack(right, 2)), None, None, None


def _dot(V: Tensor, q: Tensor) -> Tensor:
    """V [b,j,i,p], q [b,j,p] -> [b,j,i]. A row times a transposed matrix is faster than a matrix times a column."""
    return torch.matmul(q.unsqueeze(2), V.mT).squeeze(2)


def squashed(s: Tensor) -> Tensor:
    """Squash over the last axis (`capsroute.routing.squash`), for values only."""
    return s * _factor(s)[0]


def squashed_gradient(s: Tensor, g: Tensor) -> Tensor:
    """What squash makes of the gradient of its result."""
    factor, norm = _factor(s)
    unit = s / norm
    slope = factor * (2 / (1 + norm.square()) - 1)  # n d/dn of n / (1 + n^2)
    return factor * g + slope * (unit * g).sum(2, keepdim=True) * unit


def _factor(s: Tensor) -> tuple[Tensor, Tensor]:
    """n / (1 + n^2) and the norm n over the last axis, which counts as one where it is zero."""
    largest = s.abs().amax(2, keepdim=True)
    zero = largest == 0
    scale = torch.where(zero, 1.0, largest)
    norm = torch.where(zero, 1.0, (s / scale).norm(dim=2, keepdim=True) * scale)
    return torch.where(zero, 0.0, 1 / (norm + 1 / norm)), norm


def _normalised(logits: Tensor, g: Tensor, normalise: Normalise) -> tuple[Tensor, Tensor]:
    """Coefficients [b,j,i] again, and the gradient of the logits from theirs."""
    if normalise is over_parents:
        c = logits.softmax(1)
        weighted = c * g
        return c, weighted - c * weighted.sum(1, keepdim=True)
    with torch.enable_grad():
        leaf = logits.detach().requires_grad_()
        c = normalise(leaf.mT).mT
        return c.detach(), torch.autograd.grad(c, leaf, g)[0]


def _plain_gradient(V: Tensor, g_poses, g_c, first: float, normalise: Normalise, iterations: int) -> Tensor:
    """The same gradient, itself differentiable: that of the loop contraction by contraction."""
    from capsroute.routing.accumulated import plain_loop

    poses, c = plain_loop(DenseVotes(V.transpose(1, 2)), first, normalise, iterations, False)
    given = [(out, g) for out, g in ((poses.flatten(2), g_poses), (c.mT, g_c)) if g is not None]
    outputs, gradients = zip(*given)
    return torch.autograd.grad(outputs, V, gradients, create_graph=True)[0]
