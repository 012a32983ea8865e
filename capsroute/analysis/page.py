"""All pictures of a run in a folder, and one page that shows them with captions and needs no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from capsroute.analysis.figures import Run, RunFigure, list_figures
from capsroute.analysis.style import save_figure
from capsroute.files import write_atomically

__all__ = ["Drawn", "check_figures", "draw_figure", "draw_page"]

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { margin: 2.5rem 0; } figure img { max-width: 100%; }
figcaption { color: #444; } h1, h2 { line-height: 1.2; } code { background: #f2f2f2; padding: 0 .25em; }
"""


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
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p>Drawn by <code>capsroute figures</code>. Beside this page lie the pictures as PNG and SVG "
        f"and, for each, its numbers as NPZ.</p>{shown}{rest}</html>\n"
    )


def _figure(figure: RunFigure, run: Run, folder: Path) -> str:
    image = base64.b64encode((folder / f"{figure.name}.png").read_bytes()).decode()
    links = " ".join(f'<a href="{figure.name}.{kind}">{kind}</a>' for kind in ("png", "svg", "npz"))
    return (
        f'<figure id="{figure.name}"><h2>{html.escape(figure.title)}</h2>'
        f'<img alt="{html.escape(figure.title)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{html.escape(figure.says(run))} {links}</figcaption></figure>"
    )
