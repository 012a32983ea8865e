"""Children that are only padding: how each routing is told to leave them out."""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.layers import Capsules, Router

__all__ = ["masked"]


def masked(router: Router, poses: Tensor, scores: Tensor | None, mask: Tensor | None) -> Capsules:
    """Capsules [b,i,a,k] that route as if those where `mask` [b,i] is false were not there.

    Scores become +-inf or 0 where the algorithm can leave a child out by its score. Else the pose becomes zero: a child
    whose votes are zero adds nothing to any parent, unless children share one unit of weight out among themselves.

    >>> import torch
    >>> from capsroute.layers import make_router
    >>> from capsroute.models.masking import masked
    >>> masked(make_router("heinsen"), torch.ones(1, 2, 1, 4), None, torch.tensor([[True, False]])).scores
    tensor([[inf, -inf]])
    """
    if mask is None:
        return Capsules(poses, scores)
    if mask.shape != poses.shape[:2]:
        raise ValueError(f"mask: expected [b,i] = {list(poses.shape[:2])}, got {list(mask.shape)}")
    if router.mask_kind is None and router.declared("competes_over") == "children":
        raise ValueError(f"mask: routing {router.name!r} weighs children against each other and cannot leave one out")
    mask = mask.bool()
    # The pose too, so that whatever stands in the padding, even NaN, meets no sum.
    poses = torch.where(mask[:, :, None, None], poses, 0.0)
    if router.mask_kind is None:
        return Capsules(poses)
    always, never = (torch.inf, -torch.inf) if router.mask_kind == "logit" else (1.0, 0.0)
    present = torch.full_like(poses[:, :, 0, 0], always) if scores is None else scores
    return Capsules(poses, torch.where(mask, present, never))
