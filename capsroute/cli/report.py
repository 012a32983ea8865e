"""`capsroute report`: write report.md of a finished run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from capsroute.cli.failures import explained
from capsroute.training import RunFolder, write_report

Run = Annotated[Path, typer.Argument(help="A run folder.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute report`."""
    app.command()(report)


def report(run: Run) -> None:
    """Write report.md, with its plot, from what lies in a run folder; print it."""
    with explained():
        path = write_report(RunFolder(run))
        typer.echo(path.read_text(encoding="utf-8"))
        typer.echo(f"written to {path}")
