"""The figures that can be made of a run: what each shows, what it needs, and how it is made. A file of this room holds
a family of them: numbers, drawing, and `run_figure` on what makes both of a run."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from capsroute.analysis.named_tensors import Named
from capsroute.analysis.tracing import repeating_modules
from capsroute.inference import class_layer, refusal
from capsroute.layers import RoutingPool2d

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Run", "RunFigure", "list_figures", "run_figure"]

Run = Any  # a cr.training.Run, which stands above this room
Need = Callable[[Run], str | None]  # why a figure cannot be made; None when it can

Made: TypeAlias = "tuple[Named, Figure]"  # what a figure shows, and the picture
Maker = TypeVar("Maker", bound=Callable[[Run], "Made"])

COUNT = re.compile(r"\{(\d+) (test|training)\}")


class RunFigure(NamedTuple):
    """One figure: `make(run)` gives its numbers and the picture drawn from them.

    In a caption, `{500 test}` stands for 500 test images, or as many as there are or were asked for.
    """

    name: str
    title: str
    caption: str
    needs: tuple[Need, ...]
    place: int  # on the page
    make: Callable[[Run], Made]

    def refusal(self, run: Run) -> str | None:
        """Why this figure cannot be made of this run."""
        return next((reason for reason in (need(run) for need in self.needs) if reason), None)

    def says(self, run: Run) -> str:
        """The caption under the figure of this run."""
        return COUNT.sub(lambda found: f"{run.most(int(found[1]), found[2])} {found[2]}", self.caption)


_FIGURES: dict[str, RunFigure] = {}


def run_figure(name: str, title: str, caption: str, *needs: Need, place: int = 100) -> Callable[[Maker], Maker]:
    """Marks a function that makes a figure of a run: `capsroute figures` then draws it, at its place on the page."""

    def register(make: Maker) -> Maker:
        _FIGURES[name] = RunFigure(name, title, caption, needs, place, make)
        return make

    return register


def list_figures() -> list[RunFigure]:
    """All figures, as they follow each other on the page.

    >>> from capsroute.analysis.figures import list_figures
    >>> [figure.name for figure in list_figures()][:2]
    ['training', 'confusions']
    """
    return sorted(_FIGURES.values(), key=lambda figure: figure.place)


def takes_images(run: Run) -> str | None:
    return None if run.takes_images else "the model reads no images"


def has_decoder(run: Run) -> str | None:
    return None if getattr(run.model, "decoder", None) else "the model has no decoder"


def has_routing(run: Run) -> str | None:
    return None if run.model.routed_layers() else "the model has no routed layer"


def has_iterations(run: Run) -> str | None:
    return None if repeating_modules(run.model) else "the model does not route in iterations"


def has_coupling(run: Run) -> str | None:
    if any(isinstance(module, RoutingPool2d) for module in run.model.modules()):
        return None
    layers = list(run.model.routed_layers())
    if not layers:
        return has_routing(run)
    leads = layers[0] == class_layer(run.model, len(run.test.classes))
    return None if leads else "no one layer leads from places to classes; the parse tree shows the paths"


def one_label(run: Run) -> str | None:
    return None if run.test.labels.dim() == 1 else "images have two labels"


def two_labels(run: Run) -> str | None:
    return None if run.test.labels.dim() == 2 else "images have one label"


def has_columns(run: Run) -> str | None:
    if run.recipe.data.fresh:
        return "training images are drawn anew, none is kept"
    name = class_layer(run.model, len(run.test.classes)) if run.model.routed_layers() else None
    if name is None:
        return "the model has no routed layer with the classes as parents"
    return refusal(run.model.routed_layers()[name]) or one_label(run)


def has_master(run: Run) -> str | None:
    return None if run.quick_master() is not None else "the run has no master coefficients, and none can be made"


def has_class_capsules(run: Run) -> str | None:
    return None if run.has_poses else "the model has no class capsules"
