"""`capsroute figures`: draw the papers' pictures of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from capsroute.cli.failures import explained
from capsroute.cli.names import MovedData, RunPath

Out = Annotated[Path | None, typer.Option("--out", help="Where to; otherwise RUN/figures.")]
Only = Annotated[list[str], typer.Option("--only", metavar="NAME", help="Draw only this picture; can be repeated.")]
Beside = Annotated[list[Path], typer.Option("--beside", metavar="RUN", help="Show its training too; can be repeated.")]
Images = Annotated[int | None, typer.Option("--images", metavar="N", help="Average over N images at most: quicker.")]


def figures(
    run: RunPath,
    out: Out = None,
    only: Only = [],  # noqa: B006
    beside: Beside = [],  # noqa: B006
    images: Images = None,
    data: MovedData = None,
) -> None:
    """Draw all pictures that apply to a run, with a page that shows them."""
    from capsroute.analysis.figures import Drawn
    from capsroute.training.report import draw_run

    console = Console()

    def report(drawn: Drawn) -> None:
        state = f"left out: {drawn.refusal}" if drawn.refusal else "drawn"
        console.print(f"{drawn.figure.name:20} {state}", highlight=False)

    with explained():
        page = draw_run(run, out, only or None, beside, images, report, data)
        console.print(f"{page}", markup=False, highlight=False, soft_wrap=True)
