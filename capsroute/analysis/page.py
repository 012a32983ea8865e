"""All pictures of a run in a folder, and one page that shows them with captions and needs no other file."""

from __future__ import annotations

import base64
import html
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from capsroute.analysis.draw.style import save_figure
from capsroute.analysis.plates import PLATES, Plate
from capsroute.analysis.subject import Subject, load_subject
from capsroute.files import write_atomically

__all__ = ["Drawn", "draw_run"]

FOLDER = "figures"
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
figure { margin: 2.5rem 0; } figure img { max-width: 100%; }
figcaption { color: #444; } h1, h2 { line-height: 1.2; } code { background: #f2f2f2; padding: 0 .25em; }
"""


class Drawn(NamedTuple):
    """A picture that was made, or why it was not."""

    plate: Plate
    refusal: str | None = None


def draw_run(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    only: list[str] | None = None,
    beside: Sequence[str | os.PathLike[str]] = (),
    images: int | None = None,
    report: Callable[[Drawn], None] = lambda drawn: None,
) -> Path:
    """Draw all that applies to a run into `out` (None: RUN/figures); the page that shows it.

    Beside each NAME.png lie NAME.svg and NAME.npz, the numbers. `only` names the pictures to make, `beside`
    other runs whose training is shown beside this one's. Averages are over `images` images at most: fewer than
    the captions' hundreds and thousands for a large network without a GPU.

    >>> import tempfile, capsroute as cr
    >>> quick = cr.training.load_recipe("quickstart", ["training.max_steps=1", "evaluation.pictures=false"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = cr.training.fit(None, None, quick, folder, reporter=cr.training.SilentReporter())
    ...     cr.analysis.draw_run(folder, only=["reconstructions"]).name
    'index.html'
    """
    names = [plate.name for plate in PLATES]
    unknown = sorted(set(only or ()) - set(names))
    if unknown:
        raise ValueError(f"only: expected names among {', '.join(names)}, got {', '.join(unknown)}")
    if images is not None and images < 1:
        raise ValueError(f"images: expected a number >= 1, got {images}")
    subject = load_subject(run, beside, images)
    folder = Path(out) if out is not None else subject.folder.path / FOLDER
    page = folder / "index.html"
    results = []
    for plate in PLATES:
        if only is None or plate.name in only:
            results.append(_draw(plate, subject, folder))
            # After each: pictures of a large network take minutes, and who stops waiting keeps what there is.
            write_atomically(page, _page(subject, folder, results).encode())
            report(results[-1])
    return page


def _draw(plate: Plate, subject: Subject, folder: Path) -> Drawn:
    refusal = plate.refusal(subject)
    if refusal is not None:
        return Drawn(plate, refusal)
    try:
        numbers, figure = plate.make(subject)
    except ValueError as error:  # such as too few images of a class: no reason to go without the other pictures
        return Drawn(plate, f"could not be drawn: {error}")
    numbers.save(folder / f"{plate.name}.npz")
    save_figure(figure, folder / plate.name)
    return Drawn(plate)


def _page(subject: Subject, folder: Path, results: list[Drawn]) -> str:
    title = html.escape(f"{subject.recipe.name}: {subject.model.name}")
    shown = "".join(_figure(drawn.plate, subject, folder) for drawn in results if drawn.refusal is None)
    left_out = "".join(
        f"<li>{html.escape(drawn.plate.title)}: {html.escape(drawn.refusal)}.</li>"
        for drawn in results
        if drawn.refusal
    )
    rest = f"<h2>Not for this run</h2><ul>{left_out}</ul>" if left_out else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f"<h1>{title}</h1><p>Drawn by <code>capsroute figures</code>. Beside this page lie the pictures as PNG and SVG "
        f"and, for each, its numbers as NPZ.</p>{shown}{rest}</html>\n"
    )


def _figure(plate: Plate, subject: Subject, folder: Path) -> str:
    image = base64.b64encode((folder / f"{plate.name}.png").read_bytes()).decode()
    links = " ".join(f'<a href="{plate.name}.{kind}">{kind}</a>' for kind in ("png", "svg", "npz"))
    return (
        f'<figure id="{plate.name}"><h2>{html.escape(plate.title)}</h2>'
        f'<img alt="{html.escape(plate.title)}" src="data:image/png;base64,{image}">'
        f"<figcaption>{html.escape(plate.says(subject))} {links}</figcaption></figure>"
    )
