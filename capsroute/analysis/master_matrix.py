"""Master coefficients themselves: which children count for which parent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor

from capsroute.analysis.figures import Made, Run, run_figure
from capsroute.analysis.named_tensors import Named
from capsroute.analysis.style import HEAT, colour_bar, drawing, grid, picture
from capsroute.inference import MasterCoefficients

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MasterMatrix", "draw_master_matrix", "master_matrix"]


@dataclass(frozen=True, eq=False)
class MasterMatrix(Named):
    """The coefficients of one layer."""

    axes: ClassVar = {"coefficients": ("child", "parent")}
    coefficients: Tensor
    layer: str


def master_matrix(master: MasterCoefficients, layer: str | None = None) -> MasterMatrix:
    """The master coefficients of a layer; None: the last.

    >>> import torch, capsroute as cr
    >>> master = cr.inference.MasterCoefficients({"class_capsules": torch.rand(32, 10)}, torch.ones(10).long())
    >>> cr.analysis.master_matrix(master).layer
    'class_capsules'
    """
    name = list(master)[-1] if layer is None else layer
    return MasterMatrix(master[name].cpu(), name)


@drawing
def draw_master_matrix(numbers: MasterMatrix) -> Figure:
    """Children from left to right, parents from top to bottom.

    >>> import torch, capsroute as cr
    >>> figure = cr.analysis.draw_master_matrix(cr.analysis.MasterMatrix(torch.rand(32, 10), "class_capsules"))
    """
    figure = picture(7.2, 2.2)
    ((axes,),) = grid(figure, 1, 1)
    drawn = axes.imshow(numbers.coefficients.T.numpy(), aspect="auto", interpolation="nearest", cmap=HEAT)
    axes.set(title=numbers.layer, xlabel="child", ylabel="parent")
    colour_bar(figure, drawn, axes, "coefficient")
    return figure


def _has_kept(run: Run) -> str | None:
    return None if run.master is not None else "the run kept no master coefficients"


@run_figure(
    "master_matrix",
    "Master coefficients of the run",
    "Which children count for which parent when nothing is routed.",
    _has_kept,
    place=16,
)
def _master_matrix_of(run: Run) -> Made:
    numbers = master_matrix(run.master)
    return numbers, draw_master_matrix(numbers)
