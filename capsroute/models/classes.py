"""Class capsules to class scores, whatever the routing: lengths where poses are squashed, the algorithm's own scores
where it has them, else a linear classifier that all class capsules share (001, section 4.1)."""

from __future__ import annotations

from torch import Tensor, nn

from capsroute.layers import Router
from capsroute.routing import Routed, lengths

__all__ = ["LOSSES", "ClassScores", "class_score_kind"]

# The loss that the papers train each kind of score with.
LOSSES = {"length": "margin", "logit": "cross_entropy", "probability": "spread"}


def class_score_kind(router: Router) -> str:
    """What the scores of class capsules mean under this routing."""
    return "length" if router.squashes else router.score_kind or "logit"


class ClassScores(nn.Module):
    """Routed class capsules -> scores [b, classes]."""

    def __init__(self, router: Router, pose_numbers: int):
        super().__init__()
        self.kind = class_score_kind(router)
        has_scores = router.squashes or router.score_kind is not None
        self.classifier = None if has_scores else nn.Linear(pose_numbers, 1)

    def forward(self, routed: Routed) -> Tensor:
        if self.classifier is not None:
            return self.classifier(routed.poses.flatten(2)).squeeze(2)
        if self.kind == "length":
            return lengths(routed.poses)
        assert routed.scores is not None
        return routed.scores

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}"
