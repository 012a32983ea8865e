"""`capsroute export`: a run's network as one file, with its own routing or folded with given coefficients."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

from capsroute.cli.failures import explained
from capsroute.data import dataset_info
from capsroute.inference import MasterCoefficients, export, fold, uniform_coefficients
from capsroute.inference.eligible import refusal, routed_layers
from capsroute.inference.exporting import FORMATS
from capsroute.training import Recipe, load_run, load_splits
from capsroute.training.data import plain_batches
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
        recipe, model = load_run(run)
        path = output or run / "export" / f"{routing}{FORMATS[format]}"
        exported = export(
            _routed(model, routing, run),
            path,
            format,
            opset=opset,
            classes=_classes(recipe),
            normalise=_normalise(recipe),
        )
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


def _classes(recipe: Recipe) -> Sequence[str] | None:
    return None if recipe.data.name is None else dataset_info(recipe.data.name).classes


def _normalise(recipe: Recipe) -> tuple[Any, Any] | None:
    """(mean, std) of each channel that the run normalised its images with."""
    if recipe.data.normalise == "none":
        return None
    splits = load_splits(recipe)
    batches = plain_batches(splits.train, splits, recipe, torch.device("cpu"))
    mean, std = batches.normalise  # type: ignore[attr-defined]
    return mean.flatten().tolist(), std.flatten().tolist()
