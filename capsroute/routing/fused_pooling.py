"""Routing pooling as one operator, `capsroute::pooling`, where its kernels apply."""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.form.contractions.operators import is_transformed
from capsroute.form.dispatch import applies, explain
from capsroute.form.operations import Operation
from capsroute.votes import IdentityVotes, Votes

__all__ = ["fused_pooling"]


def fused_pooling(votes: Votes, iterations: int, sharpness: float) -> tuple[Tensor, Tensor] | None:
    """Poses [b,1,a,k] and coefficients [b,i,1] from the kernels, or None where they do not apply.

    `cr.form.explain("pooling", u, parents, iterations)` says why.
    """
    if not isinstance(votes, IdentityVotes) or votes.backend == "torch" or is_transformed(votes.u):
        return None
    if not applies("pooling", votes.u, votes.parents, iterations):
        if votes.backend == "triton":
            reasons = explain("pooling", votes.u, votes.parents, iterations)
            raise ValueError("backend='triton' does not apply to pooling: " + "; ".join(reasons))
        return None
    poses, c, *_ = _POOLING(votes.u.flatten(2), iterations, sharpness)
    return poses.view(votes.batch, 1, votes.rows, votes.columns), c.unsqueeze(2)


def _forward(u: Tensor, iterations: int, sharpness: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from capsroute.form.pooling import kernels as pooling

    return pooling.pooling_forward(u, iterations, sharpness)


def _backward(
    g_poses: Tensor | None, g_c: Tensor | None, g_sums: Tensor | None, g_logs: Tensor | None, u: Tensor, poses: Tensor,
    c: Tensor, sums: Tensor, logs: Tensor, iterations: int, sharpness: float,
) -> list[Tensor]:  # fmt: skip
    from capsroute.form.pooling import kernels as pooling

    return [pooling.pooling_backward(u, g_poses, g_c, (poses, c, sums, logs), iterations, sharpness)]


def _plain(u: Tensor, iterations: int, sharpness: float) -> tuple[Tensor, Tensor]:
    from capsroute.routing.pooling import plain_pooling

    poses, c = plain_pooling(IdentityVotes(u.unsqueeze(2)), iterations, sharpness)
    return poses.flatten(1), c.squeeze(2)


_operator = torch.library.custom_op("capsroute::pooling", _forward, mutates_args=())
_backward_operator = torch.library.custom_op("capsroute::pooling_backward", _backward, mutates_args=())


@_operator.register_fake
def _(u, iterations, sharpness):
    poses = u.new_empty((u.shape[0], u.shape[2]), dtype=torch.float32)
    logs = poses.new_empty((iterations, u.shape[0]))
    return poses, poses.new_empty(u.shape[:2]), poses.new_empty((iterations, *poses.shape)), logs


@_backward_operator.register_fake
def _(g_poses, g_c, g_sums, g_logs, u, *rest):
    return [u.new_empty(u.shape)]


_POOLING = Operation(_operator, _forward, _backward_operator, _backward, _plain, tensors=1, kept=(0, 1, 2, 3))
