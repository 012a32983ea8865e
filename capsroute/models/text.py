"""Heinsen's network for text: a transformer's hidden states routed as capsules (Heinsen 2019, figure 5)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.layers import Pose, Router, make_router, parse_pose
from capsroute.models.base import CapsuleModel, ModelOutput, coefficients_of
from capsroute.models.class_scores import ClassScores
from capsroute.models.heinsen import part_capsules
from capsroute.models.masking import masked
from capsroute.models.registry import register_model

__all__ = ["HeinsenText", "check_hidden", "feature_detector"]


class HeinsenText(CapsuleModel):
    """Hidden states of every token at every depth -> one capsule each -> parts -> labels.

    hidden [b, tokens, depth, width], mask [b, tokens] with 1 for a token and 0 for padding. `norm_first=True` is the
    paper's order, LayerNorm, affine, Swish; False is that of the authors' code, affine, Swish, LayerNorm. Every token
    counts fully, as in the paper, unless `learned_scores` lets the features say how much, as in the network for images.

    >>> import torch, capsroute as cr
    >>> model = cr.models.HeinsenText(depth=3, width=32, num_classes=2)
    >>> mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    >>> model(torch.randn(2, 5, 3, 32), mask=mask).scores.shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        depth: int = 37,
        width: int = 1280,
        num_classes: int = 5,
        features: int = 64,
        parts: int = 64,
        pose: Pose = 2,
        norm_first: bool = True,
        learned_scores: bool = False,
        routing: str | dict | Router = "heinsen",
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(num_classes)
        self.input_shape = (None, depth, width)
        router = make_router(routing)
        rows, columns = parse_pose("pose", pose)
        if rows != 1:
            raise ValueError(f"pose: expected a vector pose, for hidden states are vectors, got {pose!r}")
        self.depth_embedding = nn.Parameter(torch.zeros(depth, width))
        self.detect = feature_detector(width, features, norm_first)
        if learned_scores and router.score_kind is None:
            raise ValueError(f"learned_scores: routing {router.name!r} takes no scores")
        self.scores = nn.Linear(features, 1) if learned_scores else None
        self.capsules = part_capsules(parts, num_classes, features, pose, router, std, backend)
        self.class_scores = ClassScores(router, columns)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss

    def forward(
        self,
        hidden: Tensor,
        labels: Tensor | None = None,
        return_coefficients: bool = False,
        mask: Tensor | None = None,
    ) -> ModelOutput:
        check_hidden(hidden, mask, self.input_shape)
        poses = self.detect(hidden + self.depth_embedding).flatten(1, 2).unsqueeze(2)  # [b, tokens*depth, 1, k]
        router = self.capsules.routed_layers()[0].routing
        scores = None
        if self.scores is not None:
            scores = self.scores(poses).flatten(1)  # [b, tokens*depth]
            scores = scores.sigmoid() if router.score_kind == "probability" else scores
        if mask is not None:
            mask = mask.unsqueeze(2).expand(hidden.shape[:3]).flatten(1)  # [b, tokens*depth]
        capsules = masked(router, poses, scores, mask)
        routed = self.capsules.route(capsules.poses, capsules.scores, return_coefficients)
        coefficients = coefficients_of(self.routed_layers(), routed) if return_coefficients else None
        return ModelOutput(self.class_scores(routed[-1]), routed[-1].poses, None, coefficients, routed[-1].variances)


def feature_detector(width: int, features: int, norm_first: bool) -> nn.Sequential:
    """Hidden states -> features, one affine map for all tokens and depths (Heinsen 2019, figure 5c)."""
    affine = nn.Linear(width, features)
    nn.init.kaiming_normal_(affine.weight)
    nn.init.zeros_(affine.bias)
    if norm_first:
        return nn.Sequential(nn.LayerNorm(width), affine, nn.SiLU())
    return nn.Sequential(affine, nn.SiLU(), nn.LayerNorm(features))


def check_hidden(hidden: Tensor, mask: Tensor | None, shape: tuple[int | None, ...]) -> None:
    """Hidden states of the depth and width that the model was made for, and a mask that fits them."""
    if hidden.dim() != 4 or tuple(hidden.shape[2:]) != shape[1:]:
        depth, width = shape[1:]
        raise ValueError(f"hidden: expected [b,tokens,{depth},{width}], got {list(hidden.shape)}")
    if mask is not None and mask.shape != hidden.shape[:2]:
        raise ValueError(f"mask: expected [b,tokens] = {list(hidden.shape[:2])}, got {list(mask.shape)}")


@register_model(small={"depth": 3, "width": 12, "features": 8, "parts": 6, "num_classes": 3})
def heinsen_sst(**options: Any) -> HeinsenText:
    """Heinsen 2019's routing of GPT-2 large's hidden states for SST: 142,912 parameters for 5 labels, 141,376 for 2."""
    return HeinsenText(**options)
