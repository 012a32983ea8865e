"""`capsroute report` and `capsroute compare`: finished runs, one as a page, several beside each other."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.cli.failures import explained
from capsroute.cli.names import RunPath
from capsroute.training import RunFolder, write_report
from capsroute.training.report import COMPARED, compare_runs

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that --seeds made.", metavar="RUN RUN...")]


def report(run: RunPath) -> None:
    """Write report.md, with its plot, from what lies in a run folder; print it."""
    with explained():
        path = write_report(RunFolder(run))
        typer.echo(path.read_text(encoding="utf-8"))
        typer.echo(f"written to {path}")


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
