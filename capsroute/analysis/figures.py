"""What a figure is: numbers first, tensors whose axes have names (`Named`), then a drawing; and the figures that can be
made of a run: what each shows, what it needs, and how it is made. A file of this room holds a family of them: numbers,
drawing, and `run_figure` on what makes both of a run. All of them go into a folder, with one page that shows them with
captions and needs no other file."""

from __future__ import annotations

import base64
import dataclasses
import html
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from capsroute.analysis.style import Figure, save_figure
from capsroute.analysis.tracing import repeating_modules
from capsroute.files import write_atomically
from capsroute.inference import class_layer, refusal
from capsroute.layers import RoutingPool2d


def along(axes: str) -> dict[str, tuple[str, ...]]:
    """Metadata of a field of a result: the names of its tensor's axes, with commas between them."""
    return {"axes": tuple(axes.split(", "))}


class _Axes:
    """The axes of each tensor of a class of results, by the tensor's name: what its fields say."""

    def __get__(self, instance: Any, kind: type) -> dict[str, tuple[str, ...]]:
        return {field.name: field.metadata["axes"] for field in dataclasses.fields(kind) if "axes" in field.metadata}


@dataclasses.dataclass(frozen=True, eq=False)
class Named:
    """The base of all results: `axes` names the axes of each tensor, and axes of one name have one size.

    >>> import torch
    >>> from dataclasses import dataclass
    >>> from typing import ClassVar
    >>> from capsroute.analysis import Named
    >>> @dataclass(frozen=True, eq=False)
    ... class Heights(Named):
    ...     axes: ClassVar = {"metres": ("person", "year"), "years": ("year",)}
    ...     metres: torch.Tensor
    ...     years: torch.Tensor
    >>> Heights(torch.rand(3, 2), torch.tensor([1999, 2000])).size("person")
    3
    """

    axes: ClassVar[dict[str, tuple[str, ...]]]

    def __post_init__(self) -> None:
        sizes: dict[str, int] = {}
        for name, axes in self._present():
            shape = getattr(self, name).shape
            if len(shape) != len(axes):
                raise ValueError(f"{name}: expected the axes {', '.join(axes)}, got {list(shape)}")
            for axis, size in zip(axes, shape):
                if sizes.setdefault(axis, size) != size:
                    raise ValueError(f"{name}: expected {sizes[axis]} along {axis!r} as elsewhere, got {size}")

    def size(self, axis: str) -> int:
        """How long the axis of this name is."""
        for name, axes in self._present():
            if axis in axes:
                return getattr(self, name).shape[axes.index(axis)]
        known = sorted({axis for _, axes in self._present() for axis in axes})
        raise ValueError(f"axis: expected one of {', '.join(known)}, got {axis!r}")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the tensors as one .npz file; its entry `axes` is JSON that names their axes."""
        tensors = {name: getattr(self, name).detach().cpu() for name, _ in self._present()}
        # numpy has no bfloat16
        arrays = {name: (t.float() if t.dtype == torch.bfloat16 else t).numpy() for name, t in tensors.items()}
        content = io.BytesIO()
        np.savez_compressed(content, axes=np.array(json.dumps(dict(self._present()))), **arrays)
        write_atomically(Path(path), content.getvalue())

    def _present(self) -> list[tuple[str, tuple[str, ...]]]:
        return [(name, axes) for name, axes in self.axes.items() if isinstance(getattr(self, name), Tensor)]


Named.axes = _Axes()  # type: ignore[assignment]  # not before: a dataclass looks at its attributes while it is made


Run = Any  # a cr.training.Run, which stands above this room
Need = Callable[[Run], str | None]  # why a figure cannot be made; None when it can

Made = tuple[Named, Figure]  # what a figure shows, and the picture
Maker = TypeVar("Maker", bound=Callable[[Run], Made])

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


def _need(met: Callable[[Run], Any], otherwise: str) -> Need:
    return lambda run: None if met(run) else otherwise


takes_images = _need(lambda run: run.takes_images, "the model reads no images")
has_decoder = _need(lambda run: getattr(run.model, "decoder", None), "the model has no decoder")
has_routing = _need(lambda run: run.model.routed_layers(), "the model has no routed layer")
has_iterations = _need(lambda run: repeating_modules(run.model), "the model does not route in iterations")
has_class_capsules = _need(lambda run: run.has_poses, "the model has no class capsules")
one_label = _need(lambda run: run.test.labels.dim() == 1, "images have two labels")
two_labels = _need(lambda run: run.test.labels.dim() == 2, "images have one label")
has_master = _need(
    lambda run: run.quick_master() is not None, "the run has no master coefficients, and none can be made"
)
kept_master = _need(lambda run: run.master is not None, "the run kept no master coefficients")


def has_coupling(run: Run) -> str | None:
    if any(isinstance(module, RoutingPool2d) for module in run.model.modules()):
        return None
    layers = list(run.model.routed_layers())
    if not layers:
        return has_routing(run)
    leads = layers[0] == class_layer(run.model, len(run.test.classes))
    return None if leads else "no one layer leads from places to classes; the parse tree shows the paths"


def has_columns(run: Run) -> str | None:
    if run.recipe.data.fresh:
        return "training images are drawn anew, none is kept"
    name = class_layer(run.model, len(run.test.classes)) if run.model.routed_layers() else None
    if name is None:
        return "the model has no routed layer with the classes as parents"
    return refusal(run.model.routed_layers()[name]) or one_label(run)


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { margin: 2.5rem 0; } figure img { max-width: 100%; }
figcaption { color: #444; } h1, h2 { line-height: 1.2; } code { background: #f2f2f2; padding: 0 .25em; }
"""
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'  # phones


class Drawn(NamedTuple):
    """A picture that was made, or why it was not."""

    figure: RunFigure
    refusal: str | None = None


def check_figures(only: Sequence[str] | None) -> None:
    """Names of pictures that there are."""
    names = [figure.name for figure in list_figures()]
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        raise ValueError(f"only: expected names among {', '.join(names)}, got {', '.join(unknown)}")


def draw_page(run: Run, folder: Path, only: Sequence[str] | None, report: Callable[[Drawn], None]) -> Path:
    """Draw all that applies to an opened run, or `only` these, into a folder; the page that shows it."""
    check_figures(only)
    page = folder / "index.html"
    results = []
    for figure in list_figures():
        if only is None or figure.name in only:
            results.append(draw_figure(figure, run, folder))
            # After each: pictures of a large network take minutes, and who stops waiting keeps what there is.
            write_atomically(page, _page(run, folder, results).encode())
            report(results[-1])
    return page


def draw_figure(figure: RunFigure, run: Run, folder: Path) -> Drawn:
    refusal = figure.refusal(run)
    if refusal is not None:
        return Drawn(figure, refusal)
    try:
        numbers, drawn = figure.make(run)
    except ValueError as error:  # such as too few images of a class: no reason to go without the other pictures
        return Drawn(figure, f"could not be drawn: {error}")
    numbers.save(folder / f"{figure.name}.npz")
    save_figure(drawn, folder / figure.name)
    return Drawn(figure)


def _page(run: Run, folder: Path, results: list[Drawn]) -> str:
    title = html.escape(f"{run.recipe.name}: {run.model.name}")
    shown = "".join(_figure(drawn.figure, run, folder) for drawn in results if drawn.refusal is None)
    left_out = "".join(
        f"<li>{html.escape(drawn.figure.title)}: {html.escape(drawn.refusal)}.</li>"
        for drawn in results
        if drawn.refusal
    )
    rest = f"<h2>Not for this run</h2><ul>{left_out}</ul>" if left_out else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8">{VIEWPORT}<title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p>Drawn by <code>capsroute figures</code>. Beside this page lie the pictures as PNG, SVG "
        f"and PDF and, for each, its numbers as NPZ.</p>{shown}{rest}</html>\n"
    )


def _figure(figure: RunFigure, run: Run, folder: Path) -> str:
    image = base64.b64encode((folder / f"{figure.name}.png").read_bytes()).decode()
    links = " ".join(f'<a href="{figure.name}.{kind}">{kind}</a>' for kind in ("png", "svg", "pdf", "npz"))
    return (
        f'<figure id="{figure.name}"><h2>{html.escape(figure.title)}</h2>'
        f'<img alt="{html.escape(figure.title)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{html.escape(figure.says(run))} {links}</figcaption></figure>"
    )
