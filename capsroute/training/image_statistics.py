"""What a run learns of its images goes into the model: mean and deviation, crop, polarity, names of the classes."""

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.models import ImageModel
from capsroute.models.base import CapsuleModel
from capsroute.models.preprocessing import INK
from capsroute.training.data import Splits
from capsroute.training.recipe import Recipe

LOOKED_AT = 1000  # images that polarity and placement are judged by
MOST = 0.95  # of them must agree


def record_preprocessing(model: nn.Module, splits: Splits, recipe: Recipe) -> None:
    """Write down in `model.preprocessing` what `recipe` does to the images of `splits`: the model then does it itself.

    `data.normalise = "none"` leaves the mean and deviation of a model that has them already (trained weights) alone.
    """
    if not isinstance(model, CapsuleModel):
        if recipe.data.normalise != "none":
            raise ValueError("data.normalise: the model has no `preprocessing` to do it with; normalise in the model")
        return
    fields: dict[str, Any] = {}
    classes = tuple(splits.train.classes)
    if len(classes) == model.num_classes:
        fields["classes"] = classes
    if recipe.data.normalise == "channels":
        fields["mean"], fields["deviation"] = splits.channels
    if isinstance(model, ImageModel):
        # Pictures that are drawn anew while training look otherwise than the digits they are drawn from.
        held_out = (splits.validation, *splits.test.values())
        shown = next((images for images in held_out if images is not None), splits.train)
        if recipe.data.test_crop:
            fields["crop"] = recipe.data.test_crop / min(shown.shape[1:])
        if isinstance(getattr(shown, "images", None), Tensor):
            fields |= look_of(shown.images)
    model.set_preprocessing(**fields)


def look_of(images: Tensor) -> dict[str, str]:
    """`polarity` and `resize` of grey images uint8 [n,1,h,w], where nearly all agree; nothing of others.

    >>> import torch
    >>> from capsroute.training.image_statistics import look_of
    >>> look_of(torch.zeros(5, 1, 8, 8, dtype=torch.uint8))
    {'polarity': 'light_on_dark'}
    """
    if images.shape[1] != 1 or min(images.shape[2:]) < 3 or len(images) == 0:
        return {}
    rows = torch.arange(min(LOOKED_AT, len(images)), device=images.device) * len(images) // min(LOOKED_AT, len(images))
    some = images[rows, 0].float() / 255  # [n, h, w]
    inner = some[:, 1:-1, 1:-1].sum((1, 2))
    around = (some.sum((1, 2)) - inner) / (some[0].numel() - some[0, 1:-1, 1:-1].numel())
    if (around < 0.2).float().mean() >= MOST:
        return {"polarity": "light_on_dark"} | ({"resize": "centre"} if _centred(some) else {})
    if (around > 0.8).float().mean() >= MOST:
        return {"polarity": "dark_on_light"}
    return {}


def _centred(images: Tensor) -> bool:
    """Whether nearly all lie as MNIST's digits do: in a box of 20/28 of a square, centre of mass in the middle."""
    _, height, width = images.shape
    if height != width:
        return False
    ink = images > INK
    spans = [torch.where(ink.any(axis), torch.arange(height, device=ink.device), -1) for axis in (1, 2)]
    # From the first to the last place with ink, both counted: [n].
    extents = [span.amax(1) - torch.where(span < 0, height, span).amin(1) + 1 for span in spans]
    longest = torch.stack(extents).amax(0)
    mass = images / images.sum((1, 2), keepdim=True).clamp_min(1e-6)
    places = torch.arange(height, device=images.device) + 0.5
    centres = torch.stack([(mass.sum(axis) * places).sum(1) for axis in (1, 2)])
    boxed = (longest - height * 20 / 28).abs() <= 1
    middle = ((centres - height / 2).abs() <= 1).all(0)
    return bool((boxed & middle).float().mean() >= MOST)
