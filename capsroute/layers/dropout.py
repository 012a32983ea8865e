"""Dropout of whole capsules: a child that is left out says nothing to any parent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsroute.layers.pose import Capsules


class CapsuleDropout(nn.Module):
    """Leave out capsules with probability `p` while training; whoever stays counts for them.

    poses [b,i,a,k] or a map [b,n,a,k,h,w], scores [b,i] or [b,n,h,w] or None -> the same. A capsule that is left out
    has a zero pose, and the score of an absent child where the routing knows one (`mask_kind` of a router). Where it
    does not, the poses that stay are divided by 1 - p, as in torch's own dropout.

    >>> import torch, capsroute as cr
    >>> _ = torch.manual_seed(0)
    >>> poses, _ = cr.layers.CapsuleDropout(0.5)(torch.ones(1, 6, 1, 2))
    >>> poses.unique()
    tensor([0., 2.])
    """

    def __init__(self, p: float = 0.5, mask_kind: str | None = None):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: expected a number in [0, 1), got {p!r}")
        self.p, self.mask_kind = p, mask_kind

    def forward(self, poses: Tensor, scores: Tensor | None = None) -> Capsules:
        if not self.training or self.p == 0:
            return Capsules(poses, scores)
        present = torch.rand_like(poses[:, :, :1, :1], dtype=torch.float32) >= self.p  # [b, i, 1, 1] or of a map
        if self.mask_kind is None:  # nothing but the sum of votes tells who is there
            return Capsules(torch.where(present, poses / (1 - self.p), 0.0), scores)
        always, never = (torch.inf, -torch.inf) if self.mask_kind == "logit" else (1.0, 0.0)
        here = present[:, :, 0, 0]
        scores = torch.full_like(poses[:, :, 0, 0], always) if scores is None else scores
        return Capsules(torch.where(present, poses, 0.0), torch.where(here, scores, never))

    def extra_repr(self) -> str:
        return f"p={self.p}, mask_kind={self.mask_kind!r}"
