"""All pictures of a run folder that `cr.analysis` can draw. `capsroute figures` calls this."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from capsroute.analysis.figures import Drawn, check_figures, draw_figure, draw_page, list_figures
from capsroute.training.run import Run

IN_REPORT = ("training", "confusions", "reconstructions", "master_matrix")


def draw_run(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    only: list[str] | None = None,
    beside: Sequence[str | os.PathLike[str]] = (),
    images: int | None = None,
    report: Callable[[Drawn], None] = lambda drawn: None,
    data: str | os.PathLike[str] | None = None,
) -> Path:
    """Draw all that applies to a run into `out` (None: RUN/figures); the page that shows it.

    Beside each NAME.png lie NAME.svg and NAME.npz, the numbers. `only` names the pictures to make, `beside`
    other runs whose training is shown beside this one's. Averages are over `images` images at most: fewer than
    the captions' hundreds and thousands for a large network without a GPU. `data` is where the run's own images are,
    if they moved.

    >>> import tempfile, capsroute as cr
    >>> quick = cr.training.load_recipe("quickstart", ["training.max_steps=1", "evaluation.pictures=false"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = cr.training.fit(None, None, quick, folder, reporter=cr.training.SilentReporter())
    ...     cr.analysis.draw_run(folder, only=["reconstructions"]).name
    'index.html'
    """
    check_figures(only)
    if images is not None and images < 1:
        raise ValueError(f"images: expected a number >= 1, got {images}")
    opened = Run(run, limit=images, beside=beside, data=data)
    return draw_page(opened, Path(out) if out is not None else opened.folder.path / "figures", only, report)


def draw_for_report(run: Run, anew: bool) -> list[tuple[str, str]]:
    """The few figures that every report shows: (file, title) of each. Without `anew`, what needs the model or data is
    shown as it was drawn when the run ended."""
    folder, shown = run.folder.path / "figures", []
    for figure in list_figures():
        if figure.name in IN_REPORT:
            if anew or figure.name == "training":
                draw_figure(figure, run, folder)
            if (folder / f"{figure.name}.png").is_file():
                shown.append((f"figures/{figure.name}.png", figure.title))
    return shown
