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
        table = Table("run", "model", "parameters", "validation", "test", "seconds")
        for row in compare_runs(list(runs)):
            table.add_row(*row)
        Console().print(table)
