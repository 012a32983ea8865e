"""`capsroute export`: a run's network as one file, with its own routing or folded with given coefficients."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from capsroute.cli.failures import explained
from capsroute.inference import MasterCoefficients, export, fold, uniform_coefficients
from capsroute.inference.eligible import refusal, routed_layers
from capsroute.inference.exporting import FORMATS
from capsroute.training import load_run
from capsroute.training.final import MASTER

ROUTINGS = ("dynamic", "fast", "uniform")

Run = Annotated[Path, typer.Argument(help="A run folder.")]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Routing = Annotated[str, typer.Option(help="dynamic: as trained; fast: folded with master coefficients; uniform.")]
Output = Annotated[Path | None, typer.Option(help="The file; otherwise export/ROUTING.SUFFIX in the run folder.")]
Opset = Annotated[int, typer.Option(help="Of ONNX.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute export`."""
    app.command("export")(export_run)


def export_run(
    run: Run, format: Format = "onnx", routing: Routing = "dynamic", output: Output = None, opset: Opset = 18
) -> None:
    """Write the best weights of a run for use without capsroute, and check what was written."""
    with explained():
        if routing not in ROUTINGS:
            raise ValueError(f"--routing: expected one of {', '.join(ROUTINGS)}, got {routing!r}")
        if format not in FORMATS:
            raise ValueError(f"--format: expected one of {', '.join(FORMATS)}, got {format!r}")
        _, model = load_run(run)
        path = output or run / "export" / f"{routing}{FORMATS[format]}"
        exported = export(_routed(model, routing, run), path, format, opset=opset)
        batches = "batches of 1, 2 and 33 images"
        typer.echo(
            f"{exported.path}: scores differ from the model's by at most {exported.largest_difference:.1e} on {batches}"
        )
        typer.echo(
            f"{exported.path}.json: {exported.metadata['inference']} inference, class names, input size and range"
        )


def _routed(model: nn.Module, routing: str, run: Path) -> nn.Module:
    if routing == "dynamic":
        return model
    if routing == "uniform":
        layers = [name for name, layer in routed_layers(model).items() if refusal(layer) is None]
        return fold(model, uniform_coefficients(model, layers or None))
    if not (run / MASTER).is_file():
        raise ValueError(f"--routing: fast needs {run / MASTER}; `capsroute accumulate {run}` makes it")
    return fold(model, MasterCoefficients.load(run / MASTER))
