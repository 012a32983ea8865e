"""What all pictures share: size, colours that colour-blind readers tell apart, and how a picture is written."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from capsroute.extras import named_extra
from capsroute.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.image import AxesImage
else:  # matplotlib is loaded when something is drawn: numbers do not need it
    Axes = AxesImage = Figure = Any

F = TypeVar("F", bound=Callable)

# Okabe and Ito's palette; curves also differ in marker and dash, so that print in grey is readable.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
LINES: tuple[dict[str, Any], ...] = tuple(
    {"color": c, "marker": m, "linestyle": d} for c, m, d in zip(COLOURS, MARKERS, DASHES)
)
MARKS = 20  # more markers than this on a curve hide it
DATELESS: dict[str, dict[str, None]] = {
    "svg": {"Date": None},
    "pdf": {"CreationDate": None},
}  # the same picture is the same file
HEAT = "cividis"  # even in lightness, and the same to colour-blind eyes
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.markersize": 3.5,
    "lines.linewidth": 1.2,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "capsroute",
    "pdf.fonttype": 42,  # text that can be selected and edited
}


def drawing(function: F) -> F:
    """Marks a function that draws: everything it makes is in the room's style, nothing else is."""

    @named_extra
    @functools.wraps(function)
    def styled(*args: Any, **kwargs: Any) -> Any:
        import matplotlib

        with matplotlib.rc_context(STYLE):
            return function(*args, **kwargs)

    return styled  # type: ignore[return-value]


def picture(width: float, height: float) -> Figure:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def grid(figure: FigureBase, rows: int, columns: int, **options: Any) -> list[list[Axes]]:
    """Axes in rows and columns."""
    return figure.subplots(rows, columns, squeeze=False, **options).tolist()  # type: ignore[union-attr]


def _numbers(image: Tensor) -> Tensor:
    """On the CPU as numpy takes it, bytes in [0,1]."""
    image = image.cpu()
    return image.float() / 255 if image.dtype == torch.uint8 else image.float()


def show(axes: Axes, image: Tensor, **options: Any) -> AxesImage:
    """An image [c,h,w] or [h,w] in [0,1], or bytes: grey for one channel, colour for three, else the first channel."""
    image = _numbers(image)
    if image.dim() == 3:
        image = image.movedim(0, 2).clamp(0, 1) if len(image) == 3 else image[0]
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(image.numpy(), **{"cmap": "gray", "vmin": 0, "vmax": 1, **options})


def overlay(axes: Axes, image: Tensor, heat: Tensor, low: float, high: float) -> AxesImage:
    """A heatmap [h,w] over an image [c,h,w]: under the outline of a grey image; a colour one shines through in grey."""
    image = _numbers(image)
    if len(image) == 3:
        show(axes, image.mean(0))
        return show(axes, heat, cmap="viridis", vmin=low, vmax=high, alpha=0.65)
    show(axes, image * 0.35)
    drawn = show(axes, heat, cmap=HEAT, vmin=low, vmax=high)
    axes.contour(image[0].numpy(), levels=[0.5], colors="white", linewidths=0.8)
    return drawn


def plot(axes: Axes, x: Tensor, curves: Tensor, names: Sequence[str]) -> None:
    """Curves [n,x], each with its own colour, marker and dash; of long ones, only some points are marked."""
    every = -(-len(x) // MARKS)
    for at, (curve, name) in enumerate(zip(curves.cpu(), names)):
        axes.plot(x.cpu().numpy(), curve.numpy(), label=name, markevery=every, **LINES[at % len(LINES)])
    axes.grid(alpha=0.25, linewidth=0.5)


def colour_bar(figure: FigureBase, drawn: ScalarMappable, axes: Axes | Sequence, label: str) -> None:
    """A colour bar that says what the colours mean."""
    bar = figure.colorbar(drawn, ax=axes, shrink=0.85, aspect=25)
    bar.set_label(label)
    bar.outline.set_visible(False)  # type: ignore[operator]


def label_outer(axes: Axes, text: str) -> None:
    """A name to the left of an image."""
    axes.set_ylabel(text, rotation=0, ha="right", va="center")


def name_of(label: int, classes: Sequence[str] | None) -> str:
    """A class by its name, or by its number where it has none."""
    return classes[label] if classes is not None else str(label)


def short_names(classes: Sequence[str] | None) -> bool:
    """Whether the names of classes are so short that they stand side by side."""
    return classes is None or max(map(len, classes)) <= 2


def colour_map(name: str) -> Colormap:
    """A map of numbers in [0, 1] to colours."""
    from matplotlib import colormaps

    return colormaps[name]


def save_figure(figure: Figure, path: str | os.PathLike[str], dpi: int = 160) -> list[Path]:
    """Write PATH.png, PATH.svg and PATH.pdf; each is whole or not there.

    >>> import tempfile
    >>> from capsroute.analysis.style import picture, save_figure
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [file.suffix for file in save_figure(picture(1, 1), f"{folder}/empty")]
    ['.png', '.svg', '.pdf']
    """
    import matplotlib

    written = []
    layout = figure.get_layout_engine()
    for kind in ("png", "svg", "pdf"):
        content = io.BytesIO()
        with matplotlib.rc_context(STYLE):
            metadata = DATELESS.get(kind)
            figure.savefig(content, format=kind, dpi=dpi, metadata=metadata)
        figure.set_layout_engine("none")  # laid out once, the same in every format
        target = Path(f"{os.fspath(path)}.{kind}")
        write_atomically(target, content.getvalue())
        written.append(target)
    figure.set_layout_engine(layout)
    return written
