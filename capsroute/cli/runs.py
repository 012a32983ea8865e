"""`capsroute report`, `capsroute figures` and `capsroute compare`: finished runs, one as a page, one in the papers'
pictures, several beside each other."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.analysis.figures import Drawn
from capsroute.cli.failures import explained
from capsroute.cli.names import MovedData, RunPath
from capsroute.training import RunFolder, write_report
from capsroute.training.report import COMPARED, compare_runs, draw_run

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that --seeds made.", metavar="RUN RUN...")]
Out = Annotated[Path | None, typer.Option("--out", help="Where to; otherwise RUN/figures.")]
Only = Annotated[list[str], typer.Option("--only", metavar="NAME", help="Draw only this picture; can be repeated.")]
Beside = Annotated[list[Path], typer.Option("--beside", metavar="RUN", help="Show its training too; can be repeated.")]
Images = Annotated[int | None, typer.Option("--images", metavar="N", help="Average over N images at most: quicker.")]


def report(run: RunPath) -> None:
    """Write report.md, with its plot, from what lies in a run folder; print it."""
    with explained():
        path = write_report(RunFolder(run))
        typer.echo(path.read_text(encoding="utf-8"))
        typer.echo(f"written to {path}")


def figures(
    run: RunPath,
    out: Out = None,
    only: Only = [],  # noqa: B006
    beside: Beside = [],  # noqa: B006
    images: Images = None,
    data: MovedData = None,
) -> None:
    """Draw all pictures that apply to a run, with a page that shows them."""
    console = Console()

    def report(drawn: Drawn) -> None:
        state = f"left out: {drawn.refusal}" if drawn.refusal else "drawn"
        console.print(f"{drawn.figure.name:20} {state}", highlight=False)

    with explained():
        page = draw_run(run, out, only or None, beside, images, report, data)
        console.print(f"{page}", markup=False, highlight=False, soft_wrap=True)


def compare(runs: Runs) -> None:
    """Show what finished runs reached: validation, test accuracy by routing, time; mean ± spread of seeds."""
    with explained():
        rows = compare_runs(list(runs))
        left_out = len(runs) - len(rows)
        console = Console()
        if rows:
            table = Table(box=None, padding=(0, 2, 0, 0))
            for heading in COMPARED:
                table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
            for row in rows:
                table.add_row(*row)
            console.print(table, highlight=False)
        if left_out:
            console.print(f"left out: {left_out} smoke test(s), two steps on noise each", highlight=False)
        if not rows:
            raise ValueError("no run to compare")
