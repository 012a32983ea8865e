"""`capsroute export`: a run's network as one file, with its own routing or folded with given coefficients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from capsroute.cli.failures import explained
from capsroute.cli.variants import parse_variant
from capsroute.inference import export, fold, uniform_coefficients
from capsroute.inference.exporting import FORMATS
from capsroute.training import Run
from capsroute.training.evaluation import replaceable_layers

Folder = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Routing = Annotated[str, typer.Option(help="as_trained, fast (folded with master coefficients) or uniform (folded).")]
Output = Annotated[Path | None, typer.Option(help="The file; otherwise export/ROUTING.SUFFIX in the run folder.")]
Opset = Annotated[int, typer.Option(help="Of ONNX.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute export`."""
    app.command("export")(export_run)


def export_run(
    run: Folder, format: Format = "onnx", routing: Routing = "as_trained", output: Output = None, opset: Opset = 18
) -> None:
    """Write the best weights of a run for use without capsroute, and check what was written."""
    with explained():
        variant = parse_variant(routing)
        if format not in FORMATS:
            raise ValueError(f"--format: expected one of {', '.join(FORMATS)}, got {format!r}")
        opened = Run(run)
        exported = export(
            _folded(opened, variant),
            output or run / "export" / f"{variant}{FORMATS[format]}",
            format,
            opset=opset,
        )
        batches = "batches of 1, 2 and 33 images"
        typer.echo(
            f"{exported.path}: scores differ from the model's by at most {exported.largest_difference:.1e} on {batches}"
        )
        typer.echo(
            f"{exported.path}.json: {exported.metadata['inference']} inference, class names, input size and range"
        )


def _folded(run: Run, variant: str) -> nn.Module:
    if variant == "as_trained":
        return run.model
    if variant == "uniform":
        return fold(run.model, uniform_coefficients(run.model, replaceable_layers(run.model) or None))
    if run.master is None:
        raise ValueError(
            f"--routing: fast needs {run.folder.master}; `capsroute accumulate {run.folder.path}` makes it"
        )
    return fold(run.model, run.master)
