"""Routing on top of any backbone that yields a feature map or a sequence of tokens."""

from __future__ import annotations

from torch import Tensor, nn

from capsroute.layers import CapsuleLinear, CapsuleStack, Pose, Router, make_router, parse_pose
from capsroute.models.base import ModelOutput, coefficients_of
from capsroute.models.classes import ClassScores
from capsroute.models.heinsen import part_capsules
from capsroute.models.masking import masked

__all__ = ["RoutingHead"]


class RoutingHead(nn.Module):
    """A feature map [b,c,h,w], or tokens [b,n,c] -> class scores, for any number of positions or tokens.

    Each position becomes `capsules` capsules by LayerNorm and a linear map; they share their transforms and are
    routed to the classes, over `parts` capsules in between where that is given. `mask` [b,n] leaves padding out.

    >>> import torch, capsroute as cr
    >>> head = cr.models.RoutingHead(in_features=512, num_classes=10)
    >>> head(torch.randn(2, 512, 7, 7)).scores.shape, head(torch.randn(2, 30, 512)).scores.shape
    (torch.Size([2, 10]), torch.Size([2, 10]))
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        capsules: int = 4,
        pose: Pose = (4, 4),
        parts: int | None = None,
        routing: str | dict | Router = "heinsen",
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__()
        router = make_router(routing)
        self.in_features, self.num_capsules = in_features, capsules
        self.pose = parse_pose("pose", pose)
        numbers = self.pose[0] * self.pose[1]
        self.norm = nn.LayerNorm(in_features)
        self.poses = nn.Linear(in_features, capsules * numbers)
        self.scores = None if router.score_kind is None else nn.Linear(in_features, capsules)
        bias = router.score_kind is not None
        self.capsules = (
            CapsuleStack([CapsuleLinear(None, num_classes, pose, pose, router, bias, std, backend)])
            if parts is None
            else part_capsules(parts, num_classes, pose, pose, router, std, backend)
        )
        self.class_scores = ClassScores(router, numbers)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss

    def forward(self, features: Tensor, mask: Tensor | None = None, return_coefficients: bool = False) -> ModelOutput:
        tokens = self.norm(self._tokens(features))
        poses = self.poses(tokens).unflatten(2, (self.num_capsules, *self.pose)).flatten(1, 2)  # [b, n*capsules, a, k]
        router = self.capsules.routed_layers()[0].routing
        scores = None
        if self.scores is not None:
            scores = self.scores(tokens).flatten(1)
            scores = scores.sigmoid() if router.score_kind == "probability" else scores
        if mask is not None:
            mask = mask.repeat_interleave(self.num_capsules, 1)
        capsules = masked(router, poses, scores, mask)
        routed = self.capsules.route(capsules.poses, capsules.scores, return_coefficients)
        names = [f"capsules.layers.{n}" for n in range(len(routed))]
        coefficients = coefficients_of(names, routed) if return_coefficients else None
        return ModelOutput(self.class_scores(routed[-1]), routed[-1].poses, None, coefficients)

    def _tokens(self, features: Tensor) -> Tensor:
        tokens = features.flatten(2).mT if features.dim() == 4 else features
        if tokens.dim() != 3 or tokens.shape[2] != self.in_features:
            c = self.in_features
            raise ValueError(f"features: expected [b,{c},h,w] or [b,n,{c}], got {list(features.shape)}")
        return tokens
