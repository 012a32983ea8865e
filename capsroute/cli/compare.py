"""`capsroute compare`: finished runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.cli.failures import explained
from capsroute.training.report import COMPARED, compare_runs

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that --seeds made.", metavar="RUN RUN...")]


def register(app: typer.Typer) -> None:
    """Add `capsroute compare`."""
    app.command()(compare)


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
