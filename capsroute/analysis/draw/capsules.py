"""Pictures of reconstructions, perturbed dimensions and separated digits (004, figures 3 to 5)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from capsroute.analysis.capsules import Perturbations, Reconstructions, Separation
from capsroute.analysis.draw.style import COLOURS, drawing, grid, label_outer, name_of, picture, show

__all__ = ["draw_perturbations", "draw_reconstructions", "draw_separation"]


@drawing
def draw_reconstructions(numbers: Reconstructions, classes: Sequence[str] | None = None) -> Figure:
    """Inputs above, reconstructions below; wrong predictions in another colour.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_reconstructions(cr.analysis.reconstructions(model, torch.rand(4, 1, 8, 8)))
    """
    count = numbers.size("image")
    figure = picture(0.75 * count + 0.8, 2.1)
    axes = grid(figure, 2, count)
    for at in range(count):
        prediction = int(numbers.predictions[at])
        wrong = numbers.labels is not None and int(numbers.labels[at]) != prediction
        above = "" if numbers.labels is None else name_of(int(numbers.labels[at]), classes)
        axes[0][at].set_title(above)
        show(axes[0][at], numbers.images[at])
        show(axes[1][at], numbers.reconstructions[at])
        axes[1][at].set_xlabel(name_of(prediction, classes), color=COLOURS[1] if wrong else "black")
    label_outer(axes[0][0], "input")
    label_outer(axes[1][0], "reconstruction\nof prediction")
    return figure


@drawing
def draw_perturbations(numbers: Perturbations, image: int = 0, classes: Sequence[str] | None = None) -> Figure:
    """A row for each dimension of one image's capsule, a column for each step.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_perturbations(cr.analysis.perturbations(model, torch.rand(1, 1, 8, 8)))
    """
    rows, columns = numbers.size("dimension"), numbers.size("step")
    figure = picture(0.42 * columns + 1.3, 0.42 * rows + 0.9)
    axes = grid(figure, rows, columns)
    for row in range(rows):
        for column in range(columns):
            show(axes[row][column], numbers.pictures[image, row, column])
        label_outer(axes[row][0], str(row + 1))
    for column, step in enumerate(numbers.steps.tolist()):
        axes[0][column].set_title(f"{step:+.2f}" if abs(step) > 1e-6 else "0", fontsize=7)
    figure.suptitle(
        f"added to one dimension of the capsule '{name_of(int(numbers.classes[image]), classes)}'", fontsize=9
    )
    figure.supylabel("dimension", fontsize=8)
    return figure


@drawing
def draw_separation(numbers: Separation, classes: Sequence[str] | None = None) -> Figure:
    """Overlapping digits above, what was made of them below: both in one picture, one colour a digit, and each alone.

    Where the digits before they were laid over each other are known, they are shown in the same colours.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_separation(cr.analysis.separation(model, torch.rand(4, 1, 8, 8)))
    """
    rows = {"input": numbers.images}
    if numbers.parts is not None:
        rows["the two digits"] = _coloured(numbers.parts)
    rows["both\nreconstructions"] = _coloured(numbers.pictures)
    rows["one capsule"], rows["other capsule"] = numbers.pictures.unbind(1)
    figure = picture(0.95 * numbers.size("image") + 0.9, 1.03 * len(rows))
    axes = grid(figure, len(rows), numbers.size("image"))
    for line, (text, images) in zip(axes, rows.items()):
        label_outer(line[0], text)
        for one, image in zip(line, images):
            show(one, image)
    labels = numbers.classes if numbers.labels is None else numbers.labels
    for at, (found, given) in enumerate(zip(numbers.classes.tolist(), labels.tolist())):
        there = [name for name in given if name >= 0]
        axes[0][at].set_title("" if numbers.labels is None else " + ".join(name_of(name, classes) for name in there))
        for line, name in zip(axes[-2:], found):
            line[at].set_xlabel(name_of(name, classes), color="black" if name in there else COLOURS[1])
    return figure


def _coloured(pictures: torch.Tensor) -> torch.Tensor:
    return torch.stack([two_colours(pair) for pair in pictures])


def two_colours(pictures: torch.Tensor) -> torch.Tensor:
    """Two pictures [2,c,h,w] as one [3,h,w]: the first in orange, the second in blue, both where they overlap."""
    first, second = pictures.float().mean(1)
    return torch.stack([first, 0.55 * (first + second).clamp(max=1), second])
