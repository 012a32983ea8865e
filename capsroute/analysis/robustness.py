"""Accuracy against rotation, shift and scale that training never showed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from capsroute.analysis.figures import Made, Named, Run, along, one_label, run_figure, takes_images
from capsroute.analysis.style import Figure, drawing, grid, picture, plot
from capsroute.data.augment import as_float, linear_maps, warp
from capsroute.inference.collect import check_labels, evaluating
from capsroute.models import ImageModel

DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1))
BATCH = 256


@dataclass(frozen=True, eq=False)
class Robustness(Named):
    """Accuracy of each model under each change of the images."""

    rotation: Tensor = field(metadata=along("model, degrees"))
    shift: Tensor = field(metadata=along("model, pixels"))
    scale: Tensor = field(metadata=along("model, factor"))
    degrees: Tensor = field(metadata=along("degrees"))  # counter-clockwise
    pixels: Tensor = field(metadata=along("pixels"))
    factors: Tensor = field(metadata=along("factor"))
    models: tuple[str, ...]


def robustness(
    models: ImageModel | Mapping[str, ImageModel],
    images: Tensor,
    labels: Tensor,
    degrees: Sequence[float] = tuple(range(-90, 91, 15)),
    pixels: Sequence[float] = tuple(range(9)),
    factors: Sequence[float] = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5),
) -> Robustness:
    """Accuracy on images [n,c,h,w] in [0,1] or bytes, labels [n], turned, shifted (mean of four directions) and scaled.

    Several models, by name, see the same images.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> result = cr.analysis.robustness(model, torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]), degrees=(0, 90))
    >>> result.rotation.shape
    torch.Size([1, 2])
    """
    named = models if isinstance(models, Mapping) else {models.name: models}
    if not len(images):
        raise ValueError("images: expected at least one, got none")
    check_labels(labels, images, next(iter(named.values())).num_classes)
    for name, amounts in {"degrees": degrees, "pixels": pixels, "factors": factors}.items():
        if not len(amounts):
            raise ValueError(f"{name}: expected at least one, got none")
    images = as_float(images)

    def accuracy(angle: float = 0.0, move: tuple[float, float] = (0.0, 0.0), factor: float = 1.0) -> Tensor:
        changed, found = transformed(images, angle, move, factor), []
        for model in named.values():
            with torch.no_grad(), evaluating(model):
                found.append(torch.cat([model(part).scores.argmax(1) for part in changed.split(BATCH)]).cpu())
        return (torch.stack(found) == labels.cpu()).double().mean(1)

    def shifted(distance: float) -> Tensor:
        moves = [(distance * x, distance * y) for x, y in DIRECTIONS]
        return torch.stack([accuracy(move=move) for move in moves]).mean(0) if distance else accuracy()

    return Robustness(
        torch.stack([accuracy(angle=angle) for angle in degrees], 1),
        torch.stack([shifted(distance) for distance in pixels], 1),
        torch.stack([accuracy(factor=factor) for factor in factors], 1),
        torch.tensor(degrees, dtype=torch.float32),
        torch.tensor(pixels, dtype=torch.float32),
        torch.tensor(factors, dtype=torch.float32),
        tuple(named),
    )


def transformed(images: Tensor, degrees: float, shift: tuple[float, float], factor: float) -> Tensor:
    """Images turned, scaled and then shifted by (x, y) pixels; black where nothing was."""
    numbers = [torch.full((len(images),), value) for value in (math.radians(degrees), 0.0, factor, factor)]
    return warp(images, linear_maps(*numbers), torch.tensor(shift, dtype=torch.float32).expand(len(images), 2))


@drawing
def draw_robustness(numbers: Robustness) -> Figure:
    """Accuracy against rotation, shift and scale, a curve for each model.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.robustness(model, torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]), degrees=(0, 90))
    >>> figure = cr.analysis.draw_robustness(numbers)
    """
    figure = picture(7.2, 2.3)
    axes = grid(figure, 1, 3, sharey=True)[0]
    rows = (
        ("rotation (degrees)", numbers.degrees, numbers.rotation),
        ("shift (pixels)", numbers.pixels, numbers.shift),
        ("scale (factor)", numbers.factors, numbers.scale),
    )
    for one, (label, amounts, values) in zip(axes, rows):
        plot(one, amounts, 100 * values, numbers.models)
        one.set(xlabel=label, ylim=(0, 102))
    axes[0].set_ylabel("accuracy (%)")
    axes[0].legend()
    return figure


@run_figure(
    "robustness",
    "Robustness",
    "Accuracy on {500 test} images that are turned, shifted or scaled, with dynamic routing and with given "
    "coefficients.",
    takes_images,
    one_label,
    place=60,
)
def _robustness_of(run: Run) -> Made:
    sample = run.sample(500)
    numbers = robustness(run.shown_variants(), sample.images, sample.labels)
    return numbers, draw_robustness(numbers)
