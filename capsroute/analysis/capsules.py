"""What class capsules hold, seen through the decoder (004, figures 3 to 5): reconstructions, perturbed dimensions,
and overlapping digits taken apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.analysis.named import Named
from capsroute.inference.collect import evaluating
from capsroute.models import ImageModel, ModelOutput

__all__ = ["Perturbations", "Reconstructions", "Separation", "perturbations", "reconstructions", "separation"]

PICTURE = ("channel", "row", "column")


@dataclass(frozen=True, eq=False)
class Reconstructions(Named):
    """Images beside what the decoder makes of the predicted class capsule."""

    axes: ClassVar = {
        "images": ("image", *PICTURE),
        "reconstructions": ("image", *PICTURE),
        "predictions": ("image",),
        "labels": ("image",),
        "errors": ("image",),
    }
    images: Tensor
    reconstructions: Tensor
    predictions: Tensor
    labels: Tensor | None
    errors: Tensor  # sum of squared differences


@dataclass(frozen=True, eq=False)
class Perturbations(Named):
    """Reconstructions while one dimension of one class capsule moves."""

    axes: ClassVar = {
        "pictures": ("image", "dimension", "step", *PICTURE),
        "images": ("image", *PICTURE),
        "classes": ("image",),
        "steps": ("step",),
    }
    pictures: Tensor
    images: Tensor
    classes: Tensor  # whose capsule was moved
    steps: Tensor  # what was added


@dataclass(frozen=True, eq=False)
class Separation(Named):
    """Overlapping objects, each reconstructed from its own capsule."""

    axes: ClassVar = {
        "images": ("image", *PICTURE),
        "pictures": ("image", "object", *PICTURE),
        "classes": ("image", "object"),
        "labels": ("image", "object"),
        "parts": ("image", "object", *PICTURE),
    }
    images: Tensor
    pictures: Tensor
    classes: Tensor  # whose capsule each picture is made from
    labels: Tensor | None  # what is there
    parts: Tensor | None  # the objects before they were laid over each other


def reconstructions(model: ImageModel, images: Tensor, labels: Tensor | None = None) -> Reconstructions:
    """Reconstruct images [b,c,h,w] from the capsule of the predicted class; labels [b] are only kept beside them.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.reconstructions(cr.create_model("capsnet_small", image_size=8), torch.rand(4, 1, 8, 8))
    >>> result.reconstructions.shape, result.size("image")
    (torch.Size([4, 1, 8, 8]), 4)
    """
    output = _run(model, images)
    predictions = output.scores.argmax(1)
    pictures = _decode(model)(output.poses, predictions)
    return Reconstructions(images, pictures, predictions, labels, (pictures - images).square().sum((1, 2, 3)))


def perturbations(
    model: ImageModel, images: Tensor, classes: Tensor | None = None, steps: Tensor | None = None
) -> Perturbations:
    """Add each of `steps` to each dimension of the capsule of `classes` [b] (None: the predicted ones) and decode.

    The steps of 004, figure 4, are -0.25 to 0.25 in steps of 0.05. Dimensions are a pose's numbers, row by row.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.perturbations(cr.create_model("capsnet_small", image_size=8), torch.rand(2, 1, 8, 8))
    >>> result.pictures.shape
    torch.Size([2, 8, 11, 1, 8, 8])
    """
    steps = torch.arange(-5, 6) * 0.05 if steps is None else steps
    decode, output = _decode(model), _run(model, images)
    poses = output.poses
    assert poses is not None
    classes = output.scores.argmax(1) if classes is None else classes.to(poses.device)
    batch, parents, rows, columns = poses.shape
    dimensions, steps = rows * columns, steps.to(poses)
    shift = torch.eye(dimensions).to(poses)[:, None] * steps[:, None]  # [d, s, d]
    whose = F.one_hot(classes, parents).to(poses)[:, None, None, :, None]  # [b, 1, 1, j, 1]
    moved = poses.flatten(2)[:, None, None] + whose * shift[None, :, :, None]  # [b, d, s, j, a*o]
    names = classes[:, None, None].expand(moved.shape[:3])
    pictures = decode(moved.flatten(0, 2).unflatten(2, (rows, columns)), names.flatten())
    pictures = pictures.unflatten(0, (batch, dimensions, len(steps)))
    return Perturbations(pictures, images, classes, steps)


def separation(
    model: ImageModel, images: Tensor, labels: Tensor | None = None, parts: Tensor | None = None
) -> Separation:
    """Reconstruct each of the two most likely classes of images [b,c,h,w] from its own capsule alone.

    Labels [b,2] and the parts [b,2,h,w] that the images are made of are put in the order of the pictures.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.separation(cr.create_model("capsnet_small", image_size=8), torch.rand(3, 1, 8, 8))
    >>> result.pictures.shape
    torch.Size([3, 2, 1, 8, 8])
    """
    output, decode = _run(model, images), _decode(model)
    classes = output.scores.topk(2, dim=1).indices.sort(1).values  # [b, 2]
    pictures = torch.stack([decode(output.poses, column) for column in classes.unbind(1)], 1)
    if labels is not None:
        labels = labels.to(classes.device)
        swap = (labels == classes.flip(1)).any(1)  # the first label was found in the second place, or the other way
        labels = torch.where(swap[:, None], labels.flip(1), labels)
        if parts is not None:
            parts = parts.to(images.device).unsqueeze(2)
            parts = torch.where(swap[:, None, None, None, None], parts.flip(1), parts)
    return Separation(images, pictures, classes, labels, parts)


def _run(model: ImageModel, images: Tensor) -> ModelOutput:
    with torch.no_grad(), evaluating(model):
        return model(images)


def _decode(model: ImageModel) -> Callable[..., Tensor]:
    if model.decoder is None:
        raise ValueError(f"model: expected one with a decoder, {model.name!r} has none")
    return torch.no_grad()(model.decoder)
