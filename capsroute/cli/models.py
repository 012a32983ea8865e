"""`capsroute models` and `capsroute warm`: which models there are, how large, what they take; their kernels ahead."""

from typing import Annotated

import typer

from capsroute import models
from capsroute.cli.failures import explained
from capsroute.cli.names import completing, matching, nothing_found, show_entry
from capsroute.models.warming import warm as warm_model

Pattern = Annotated[
    str,
    typer.Argument(
        help="Only names that match, for example 'tsai_*', or contain this.",
        autocompletion=completing(models.list_models),
    ),
]
Markdown = Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")]
Trained = Annotated[bool, typer.Option("--pretrained", help="Only those that come with trained weights.")]
Models = Annotated[list[str], typer.Argument(help="Names of models, as `capsroute models` lists them.")]
Batch = Annotated[int, typer.Option(min=1, help="The batch size to train with: kernels depend on it.")]
Half = Annotated[bool, typer.Option(help="For training under bfloat16 autocast.")]


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


def warm(models: Models, batch: Batch = 128, half: Half = False) -> None:
    """Fill the cache of compiled kernels, so that training starts at once (needs a CUDA device)."""
    for name in models:
        with explained():
            done = warm_model(name, batch, half)
        typer.echo(f"{name}: {done.kernels} kernels in {done.compiling:.1f} s; first step {done.first_step:.1f} s")
