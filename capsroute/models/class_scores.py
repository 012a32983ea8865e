"""Class capsules to class scores, whatever the routing: lengths where poses are squashed, the algorithm's own scores
where they say which class is there, else a linear classifier that all class capsules share (Tsai 2020, section 4.1)."""

from torch import Tensor, nn

from capsroute.layers import Capsules, Decoder, RoutedLayer, Router
from capsroute.models.base import ImageModel, ModelOutput, coefficients_of
from capsroute.routing import Routed, lengths

# The loss that the papers train each kind of score with, and the one that also takes several classes at once.
_LOSSES = {"length": "margin", "logit": "cross_entropy", "probability": "spread"}
_OF_SEVERAL = {"length": "margin", "logit": "binary_cross_entropy", "probability": "margin"}


class ClassScores(nn.Module):
    """Routed class capsules -> scores [b, classes], with their `kind` and the `loss` that goes with it.

    Under `multi_label` several classes can be there at once.
    """

    def __init__(self, router: Router, pose_numbers: int, multi_label: bool = False):
        super().__init__()
        self.kind = "length" if router.squashes else "logit"
        if router.scores_classes:
            self.kind = router.parent_score_kind or self.kind
        self.loss = (_OF_SEVERAL if multi_label else _LOSSES)[self.kind]
        self.classifier = None if router.squashes or router.scores_classes else nn.Linear(pose_numbers, 1)

    def forward(self, routed: Routed) -> Tensor:
        if self.classifier is not None:
            poses = routed.poses.flatten(2)
            if routed.scores is not None:  # a capsule with an activation counts as much as it would in a next layer
                poses = (poses * routed.scores.unsqueeze(2)).to(poses.dtype)
            return self.classifier(poses).squeeze(2)
        if self.kind == "length":
            return lengths(routed.poses)
        assert routed.scores is not None
        return routed.scores

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}"


class ClassCapsuleModel(ImageModel):
    """Features, `child_capsules` made of them, one routed layer to class capsules, and a decoder that sees those."""

    def make_classes(
        self, layer: RoutedLayer, router: Router, class_pose: int, decoder: tuple[int, int] | None
    ) -> None:
        """All that comes after the children; `decoder` is the widths of its two hidden layers, or None."""
        self.class_capsules = layer
        self.class_scores = ClassScores(router, class_pose)
        if decoder:
            self.decoder = Decoder(self.num_classes, class_pose, self.input_shape, decoder)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss

    def child_capsules(self, features: Tensor) -> Capsules:
        """The capsules that the class layer routes."""
        raise NotImplementedError

    def forward_head(
        self, features: Tensor, labels: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        routed = self.class_capsules(*self.child_capsules(features), return_coefficients)
        scores = self.class_scores(routed)
        reconstruction = self.reconstruct(routed.poses, scores, labels)
        coefficients = coefficients_of(["class_capsules"], [routed]) if return_coefficients else None
        return ModelOutput(scores, routed.poses, reconstruction, coefficients, routed.variances)
