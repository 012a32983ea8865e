"""Losses on capsules. They live outside the models and return one number, the mean over the batch."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.deprecation import warn_deprecated
from capsroute.form.checks import check_floating
from capsroute.routing.checks import can_look, one_hot

__all__ = ["margin", "on_scores", "reconstruction", "spread"]


def margin(lengths: Tensor, labels: Tensor, positive: float = 0.9, negative: float = 0.1, down: float = 0.5) -> Tensor:
    """Margin loss (Sabour et al. 2017): T max(0, m+ - |v|)^2 + down (1 - T) max(0, |v| - m-)^2, summed over classes.

    lengths [b,j] in [0,1] (the capsules' lengths, no softmax), labels [b] or a 0/1 (or soft) mask [b,j].

    >>> import torch, capsroute as cr
    >>> cr.losses.margin(torch.tensor([[0.95, 0.05], [0.0, 1.0]]), torch.tensor([0, 0]))
    tensor(0.6075)
    """
    targets = _targets("lengths", lengths, labels)
    # Both parts as one, and not by clamp_min, whose derivative is three kernels: small networks wait for launches.
    parts = torch.cat([positive - lengths, lengths - negative], 1).relu().square()
    return (torch.cat([targets, down * (1 - targets)], 1) * parts).sum(1).mean()


def spread(scores: Tensor, labels: Tensor, margin: float | Tensor = 0.9) -> Tensor:
    """Spread loss (Hinton et al. 2018): sum over wrong classes of max(0, margin - (a_target - a_wrong))^2.

    scores [b,j], labels [b], or a 0/1 mask [b,j] of one class each. The margin grows from 0.2 to 0.9 in the first part
    of training; as a tensor [] on the device it can do so under a recorded CUDA graph.

    >>> import torch, capsroute as cr
    >>> round(cr.losses.spread(torch.tensor([[1.0, 0.5, 0.0]]), torch.tensor([0])).item(), 4)
    0.16
    """
    if isinstance(margin, Tensor):
        if margin.dim() > 0:
            raise ValueError(f"margin: expected a number or a tensor [], got shape {tuple(margin.shape)}")
    elif not 0 < margin <= 1:
        raise ValueError(f"margin: expected a number in (0, 1], got {margin!r}")
    targets = _targets("scores", scores, labels)
    if labels.dim() == 2 and can_look(targets) and not bool(((targets.sum(1) == 1) & (targets.amax(1) == 1)).all()):
        raise ValueError("labels: the spread loss compares one class of a sample with all others; got other than one")
    target_score = (scores * targets).sum(1, keepdim=True)
    wrong = (margin - (target_score - scores)).relu().square() * (1 - targets)
    return wrong.sum(1).mean()


def reconstruction(images: Tensor, targets: Tensor, weight: float | None = None) -> Tensor:
    """weight * the *sum* of squared errors of each sample, averaged over the batch; both [b,c,h,w].

    Say the weight: Sabour et al. 2017 have 0.0005, and whoever weighs the result elsewhere wants 1. Left out it is
    0.0005 with a DeprecationWarning, and an error from version 0.4 on.

    >>> import torch, capsroute as cr
    >>> round(cr.losses.reconstruction(torch.ones(2, 1, 28, 28), torch.zeros(2, 1, 28, 28), weight=0.0005).item(), 4)
    0.392
    """
    if weight is None:
        warn_deprecated("cr.losses.reconstruction without a weight", "weight=0.0005, or weight=1.0", since="0.2")
        weight = 0.0005
    check_floating("images", images)
    check_floating("targets", targets)  # bytes are not in [0, 1], and their differences wrap round
    if images.shape != targets.shape:
        raise ValueError(f"images: expected the targets' shape {tuple(targets.shape)}, got {tuple(images.shape)}")
    if images.dtype != targets.dtype:  # of which torch 2.6 finds no gradient
        wider = torch.promote_types(images.dtype, targets.dtype)
        images, targets = images.to(wider), targets.to(wider)
    return weight * math.prod(images.shape[1:]) * F.mse_loss(images, targets)


def on_scores(
    name: str, scores: Tensor, labels: Tensor, label_smoothing: float = 0.0, spread_margin: float | Tensor = 0.9
) -> Tensor:
    """The loss of a name (margin, spread, cross_entropy, binary_cross_entropy) on scores [b,j], labels [b] or [b,j].

    >>> import torch, capsroute as cr
    >>> round(cr.losses.on_scores("cross_entropy", torch.tensor([[2.0, 0.0]]), torch.tensor([0])).item(), 4)
    0.1269
    """
    if name == "cross_entropy":
        return F.cross_entropy(scores, labels, label_smoothing=label_smoothing)
    if name == "binary_cross_entropy":
        targets = _targets("scores", scores, labels) * (1 - label_smoothing) + label_smoothing / 2
        return F.binary_cross_entropy_with_logits(scores, targets)
    if name not in ("margin", "spread"):
        raise ValueError(f"name: expected margin, spread, cross_entropy or binary_cross_entropy, got {name!r}")
    return spread(scores, labels, spread_margin) if name == "spread" else margin(scores, labels)


def _targets(name: str, values: Tensor, labels: Tensor) -> Tensor:
    """0/1 targets [b,j] from class indices [b] or from a mask [b,j]."""
    check_floating(name, values, " [b,j]")
    if values.dim() != 2:
        raise ValueError(f"{name}: expected [b,j], got shape {tuple(values.shape)}")
    if not isinstance(labels, Tensor):
        raise TypeError(f"labels: expected a tensor [b] or [b,j], got {type(labels).__name__}")
    targets = one_hot(labels, values.shape[1]) if labels.dim() == 1 else labels
    if targets.shape != values.shape:
        raise ValueError(
            f"labels: expected [b] or [b,j] matching {name} {tuple(values.shape)}, got {tuple(labels.shape)}"
        )
    return targets.to(values.dtype)
