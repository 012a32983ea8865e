"""`capsroute warm`: compile a model's kernels ahead of its first step."""

from __future__ import annotations

from typing import Annotated

import typer

from capsroute.cli.failures import explained
from capsroute.models.warming import warm as warm_model

Models = Annotated[list[str], typer.Argument(help="Names of models, as `capsroute models` lists them.")]
Batch = Annotated[int, typer.Option(min=1, help="The batch size to train with: kernels depend on it.")]
Half = Annotated[bool, typer.Option(help="For training under bfloat16 autocast.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute warm`."""
    app.command("warm")(warm)


def warm(models: Models, batch: Batch = 128, half: Half = False) -> None:
    """Fill the cache of compiled kernels, so that training starts at once (needs a CUDA device)."""
    for name in models:
        with explained():
            done = warm_model(name, batch, half)
        typer.echo(f"{name}: {done.kernels} kernels in {done.compiling:.1f} s; first step {done.first_step:.1f} s")
