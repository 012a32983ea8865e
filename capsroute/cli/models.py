"""`capsroute models`: which models there are, how large they are and what they take."""

from __future__ import annotations

from typing import Annotated

import typer

from capsroute import models
from capsroute.models.registry import did_you_mean

Pattern = Annotated[str | None, typer.Argument(help="Only names that match, for example 'tsai_*'.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="As the table in docs/models.md.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute models`."""
    app.command("models")(list_)


def list_(pattern: Pattern = None, markdown: Markdown = False) -> None:
    """Show every model by name: parameters, shape of one input, what it is."""
    names = models.list_models(pattern)
    if not names:
        near = did_you_mean(str(pattern), models.list_models())
        typer.echo(f"no model matches {pattern!r}; there are: {', '.join(models.list_models())}{near}", err=True)
        raise typer.Exit(1)
    if markdown:
        typer.echo("| name | parameters | one input | classes | what |\n|---|---|---|---|---|")
    for name in names:
        summary = models.summarise(name)
        shape = " x ".join("any" if side is None else str(side) for side in summary.input_shape)
        if markdown:
            cells = [f"`{name}`", f"{summary.parameters:,}", shape, str(summary.num_classes), summary.description]
            typer.echo(f"| {' | '.join(cells)} |")
        else:
            typer.secho(name, bold=True, nl=False)
            typer.echo(f"  {summary.parameters:,} parameters; {shape}; {summary.num_classes} classes")
            typer.echo(f"    {summary.description}")
