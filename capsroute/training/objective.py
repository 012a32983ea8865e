"""What is minimised: a loss on the scores, and the error of the reconstruction where the recipe weighs it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from capsroute import losses
from capsroute.data import multi_hot
from capsroute.models import ModelOutput
from capsroute.training.evaluation import ScoresAlone
from capsroute.training.sections import LossSection

# Losses that mean something for each kind of score.
FITTING = {
    "length": ("margin", "spread"),
    "probability": ("margin", "spread"),
    "logit": ("cross_entropy", "binary_cross_entropy"),
}


class Objective:
    """The loss of a batch: `objective(output, images, labels)` -> a scalar, the mean over the batch.

    `labels` are [b], [b,2] with -1 for "only one", or float targets [b,classes] from mixup. The margin of the spread
    loss, which changes while training, is a number on the model's device that `advance` sets: a step that was recorded
    reads it anew at every replay.

    >>> import torch, capsroute as cr
    >>> from capsroute.training.objective import Objective
    >>> from capsroute.training.sections import LossSection
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> images, labels = torch.rand(2, 1, 8, 8), torch.tensor([3, 7])
    >>> objective = Objective(LossSection(reconstruction=0.0005), model)
    >>> objective(model(images, labels), images, labels).shape
    torch.Size([])
    """

    def __init__(self, settings: LossSection, model: nn.Module, own: Callable[..., Tensor] | None = None):
        self.settings, self.model = settings, model
        # The user's: given, or the model's; a loss that the recipe names comes before the model's.
        self.own = own if own is not None or settings.name != "auto" else getattr(model, "loss", None)
        self.name = str(getattr(model, "default_loss", "cross_entropy")) if settings.name == "auto" else settings.name
        kind = str(getattr(model, "score_kind", "logit"))
        if self.own is None and self.name not in FITTING[kind]:
            fitting = " or ".join(FITTING[kind])
            said = "" if hasattr(model, "score_kind") else ", as it does not say `model.score_kind = 'length'` or other"
            given = f"train them with {fitting}, got {self.name!r}"
            raise ValueError(f"loss.name: the model's scores are of kind {kind!r}{said}; {given}")
        if settings.reconstruction and getattr(model, "decoder", None) is None:
            raise ValueError("loss.reconstruction: the model has no decoder to reconstruct with")
        device = next(iter(model.parameters())).device
        self.spread_margin = torch.zeros((), device=device) if self.name == "spread" else None
        self.advance(0.0)

    def advance(self, progress: float) -> None:
        """Go to this part of training, from 0 to 1."""
        if self.spread_margin is not None:
            start, end, rise = self.settings.margin_start, self.settings.margin_end, self.settings.margin_rise
            self.spread_margin.fill_(start + (end - start) * (min(1.0, progress / rise) if rise else 1.0))

    def decoder_labels(self, labels: Tensor) -> Tensor | None:
        """Which capsules the decoder is shown: the true ones, or none at all where nothing is reconstructed."""
        if not self.settings.reconstruction:
            return None
        return labels if labels.dim() == 1 or labels.is_floating_point() else multi_hot(labels, self.model.num_classes)  # type: ignore[arg-type]

    def __call__(self, output: ModelOutput, images: Tensor, labels: Tensor, parts: Tensor | None = None) -> Tensor:
        loss = self.judge(output, labels)
        if not self.settings.reconstruction:
            return loss
        if parts is not None:
            return loss + self._parts(output, labels, parts)
        assert output.reconstruction is not None
        return loss + losses.reconstruction(output.reconstruction.float(), images, weight=self.settings.reconstruction)

    def judge(self, output: ModelOutput, labels: Tensor) -> Tensor:
        """The loss without that of a reconstruction: all that can be said of images that were not trained on."""
        if self.own is not None:
            return self.own(output.scores if isinstance(output, ScoresAlone) else output, labels)
        # Losses are sums of small numbers: float32 even under autocast.
        return self.on_scores(output.scores.float(), labels)

    def on_scores(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss on scores [b,classes] alone."""
        two = labels.shape[1:] == (2,) and not labels.is_floating_point()
        if two and self.name not in ("margin", "binary_cross_entropy"):
            raise ValueError(f"loss.name: images with two labels need margin or binary_cross_entropy, not {self.name}")
        indices = labels.dim() == 1 and self.name == "cross_entropy"
        targets = labels if labels.is_floating_point() or indices else multi_hot(labels, scores.shape[1])
        smoothing, margin = self.settings.label_smoothing, 0.9 if self.spread_margin is None else self.spread_margin
        loss = losses.on_scores(self.name, scores, targets, smoothing, margin)
        return loss / (2 * scores.shape[1]) if self.name == "margin" and self.settings.scaling == "released" else loss

    def _parts(self, output: ModelOutput, labels: Tensor, parts: Tensor) -> Tensor:
        """Each digit of a pair reconstructed from its own capsule (Sabour 2017): parts [b,2,h,w], labels [b,2]."""
        assert output.poses is not None
        weight, poses = self.settings.reconstruction, output.poses.float()
        total = output.scores.new_zeros((), dtype=parts.dtype)
        for column in range(2):
            there = labels[:, column] >= 0
            drawn = self.model.decoder(poses, labels[:, column].clamp_min(0))  # type: ignore[operator]
            target = parts[:, column, None]
            error = (drawn.float() - target).square() * there[:, None, None, None]
            total = total + weight * error.flatten(1).sum(1).mean()
        return total
