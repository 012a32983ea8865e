"""`capsroute compare`: finished runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.cli.failures import explained
from capsroute.training.report import compare_runs

Runs = Annotated[list[Path], typer.Argument(help="Run folders.", metavar="RUN RUN...")]


def register(app: typer.Typer) -> None:
    """Add `capsroute compare`."""
    app.command()(compare)


def compare(runs: Runs) -> None:
    """Show what finished runs reached: validation, test accuracy by routing, parameters, time."""
    with explained():
        rows = compare_runs(list(runs))
        table = Table("run", "model", "parameters", "validation", "test", "seconds")
        for row in rows:
            table.add_row(*row)
        console = Console()
        console.print(table)
        if len(rows) < len(runs):
            console.print(f"left out: {len(runs) - len(rows)} smoke test(s), two steps on noise each", highlight=False)
