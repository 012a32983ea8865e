"""Children that are only padding: how each routing is told to leave them out."""

import torch
from torch import Tensor

from capsroute.layers import Capsules, Router
from capsroute.routing.checks import can_look


def masked(router: Router, poses: Tensor, scores: Tensor | None, mask: Tensor | None) -> Capsules:
    """Capsules [b,i,a,k] that count as much as `mask` [b,i] says: 1 or true fully, 0 or false as if not there.

    Where the algorithm can leave a child out by its score, the probability that the score stands for is multiplied by
    the mask: a child without a score gets the logit of its mask, as in Heinsen 2019. Else the pose is multiplied: a
    child whose votes are zero adds nothing to any parent, unless children share one unit of weight among themselves.

    >>> import torch
    >>> from capsroute.layers import make_router
    >>> from capsroute.models.masking import masked
    >>> masked(make_router("heinsen"), torch.ones(1, 3, 1, 4), None, torch.tensor([[1.0, 0.5, 0.0]])).scores
    tensor([[inf, 0., -inf]])
    """
    if mask is None:
        return Capsules(poses, scores)
    if mask.shape != poses.shape[:2]:
        raise ValueError(f"mask: expected [b,i] = {list(poses.shape[:2])}, got {list(mask.shape)}")
    if router.mask_kind is None and router.declared("competes_over") == "children":
        raise ValueError(f"mask: routing {router.name!r} weighs children against each other and cannot leave one out")
    mask = as_weights(mask, poses.dtype)
    # The pose too, so that whatever stands in the padding, even NaN, meets no sum.
    poses = torch.where(mask[:, :, None, None] > 0, poses, 0.0)
    if router.mask_kind is None:
        return Capsules(poses * mask[:, :, None, None])
    always, never = (torch.inf, -torch.inf) if router.mask_kind == "logit" else (1.0, 0.0)
    present = torch.full_like(poses[:, :, 0, 0], always) if scores is None else scores
    absent = torch.where(mask == 0, never, _lessened(present, mask, router))
    return Capsules(poses, torch.where(mask == 1, present, absent))


def as_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of bools, whole or other numbers as numbers in [0, 1]; a ValueError for others, where they can be seen."""
    weights = mask.to(dtype)
    if can_look(weights) and not bool(((weights >= 0) & (weights <= 1)).all()):
        raise ValueError(f"mask: expected numbers in [0, 1], got {weights.min().item()} to {weights.max().item()}")
    return weights


def _lessened(scores: Tensor, mask: Tensor, router: Router) -> Tensor:
    """Scores whose probability is multiplied by a mask between 0 and 1."""
    if router.mask_kind != "logit":
        return scores * mask
    # Elsewhere than between them the result is not taken; one half keeps its gradient finite.
    between = torch.where((mask > 0) & (mask < 1), mask, 0.5)
    return torch.logit(between * scores.sigmoid(), eps=torch.finfo(mask.dtype).tiny)
