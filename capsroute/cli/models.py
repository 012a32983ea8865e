"""`capsroute models`: which models there are, how large they are and what they take."""

from __future__ import annotations

from typing import Annotated

import typer

from capsroute import models
from capsroute.cli.listing import matching, nothing_found, show_entry
from capsroute.cli.names import complete_models

Pattern = Annotated[
    str,
    typer.Argument(
        help="Only names that match, for example 'tsai_*', or contain this.", autocompletion=complete_models
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="As the table in docs/models.md.")]
Trained = Annotated[bool, typer.Option("--pretrained", help="Only those that come with trained weights.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute models`."""
    app.command("models")(list_)


def list_(pattern: Pattern = "", pretrained: Trained = False, markdown: Markdown = False) -> None:
    """Show every model by name: parameters, shape of one input, what it is."""
    trained = models.list_pretrained()
    names = [name for name in matching(models.list_models(), pattern) if not pretrained or name in trained]
    if not names:
        asked = f"{pattern!r}" + (" --pretrained" if pretrained else "")
        raise nothing_found("model", asked, models.list_models(), pattern)
    if markdown:
        typer.echo("| name | parameters | one input | classes | what |\n|---|---|---|---|---|")
    for name in names:
        summary = models.summarise(name)
        shape = " x ".join("any" if side is None else str(side) for side in summary.input_shape)
        if markdown:
            cells = [f"`{name}`", f"{summary.parameters:,}", shape, str(summary.num_classes), summary.description]
            typer.echo(f"| {' | '.join(cells)} |")
        else:
            facts = f"{summary.parameters:,} parameters; {shape}; {summary.num_classes} classes"
            show_entry(name, facts, summary.description)
