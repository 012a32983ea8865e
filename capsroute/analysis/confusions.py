"""How often each class is taken for each other one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from capsroute.analysis.figures import Made, Run, one_label, run_figure
from capsroute.analysis.named_tensors import Named
from capsroute.analysis.style import colour_bar, drawing, grid, name_of, picture
from capsroute.inference.collect import as_batches, evaluating

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Confusions", "confusions", "draw_confusions"]


@dataclass(frozen=True, eq=False)
class Confusions(Named):
    """Numbers of images by what they are and what they were taken for."""

    axes: ClassVar = {"counts": ("label", "prediction")}
    counts: Tensor


def confusions(model: nn.Module, batches: Iterable) -> Confusions:
    """Count the predictions of a model over `(images [b,c,h,w], labels [b])`, or a `cr.data.ImageSet`.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> int(cr.analysis.confusions(model, cr.data.load("digits", "test")).counts.sum())
    359
    """
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        scored = ((model(images.to(device)).scores, labels) for images, labels, *_ in as_batches(batches))
        return _counted(scored, int(model.num_classes))  # type: ignore[arg-type]


def _counted(scored: Iterable[tuple[Tensor, Tensor]], classes: int) -> Confusions:
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    for scores, labels in scored:
        counts += torch.bincount(labels.cpu() * classes + scores.argmax(1).cpu(), minlength=classes * classes)
    return Confusions(counts.view(classes, classes))


@drawing
def draw_confusions(numbers: Confusions, classes: Sequence[str] | None = None) -> Figure:
    """Wrong answers alone: right ones are so many that nothing else could be seen.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_confusions(cr.analysis.confusions(model, cr.data.load("digits", "test")))
    """
    wrong = numbers.counts.double().fill_diagonal_(0)
    figure = picture(4.4, 3.7)
    ((axes,),) = grid(figure, 1, 1)
    drawn = axes.imshow(wrong.numpy(), cmap="magma")
    if len(wrong) <= 20:
        names = [name_of(at, classes) for at in range(len(wrong))]
        axes.set_xticks(range(len(wrong)), names, rotation=90)
        axes.set_yticks(range(len(wrong)), names)
    axes.set(xlabel="predicted", ylabel="true")
    colour_bar(figure, drawn, axes, "images")
    return figure


@run_figure(
    "confusions",
    "Confusions",
    "Wrong answers on the test images: what they are, and what they were taken for.",
    one_label,
    place=15,
)
def _confusions_of(run: Run) -> Made:
    with evaluating(run.model), torch.no_grad():
        scored = ((run.scores(inputs), labels) for inputs, labels, *_ in run.batches(run.test))
        numbers = _counted(scored, int(run.model.num_classes))
    return numbers, draw_confusions(numbers, run.test.classes)
