"""`capsroute export`: a network as one file, with its own routing or folded with given coefficients."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

from capsroute.bars import bar
from capsroute.cli.failures import explained
from capsroute.cli.names import OldOutput, completing, list_tags, parse_variant
from capsroute.inference import MasterCoefficients, export, fold, pretrained_coefficients, uniform_coefficients
from capsroute.inference.exporting import FORMATS
from capsroute.models import load_model, pretrained_weights
from capsroute.naming import check_one_of
from capsroute.training import Run, RunFolder
from capsroute.training.evaluation import replaceable_layers

Source = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run folder, a saved model, or packaged weights by name.",
        autocompletion=completing(list_tags),
    ),
]
Format = Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")]
Routing = Annotated[str, typer.Option(help="as_trained, fast (folded with master coefficients) or uniform (folded).")]
Out = Annotated[
    Path | None,
    typer.Option(
        "--out", help="The file; otherwise export/ROUTING.SUFFIX in the run folder, or NAME-ROUTING.SUFFIX here."
    ),
]
Opset = Annotated[int, typer.Option(help="Of ONNX.")]


def export_model(
    source: Source,
    format: Format = "onnx",
    routing: Routing = "as_trained",
    out: Out = None,
    opset: Opset = 18,
    output: OldOutput = None,
) -> None:
    """Write the best weights of a run, or a saved model, for use without capsroute, and check what was written."""
    with explained():
        variant = parse_variant(routing)
        check_one_of("--format", format, FORMATS)
        model, master, beside = _opened(source)
        suffix = f".aoti{FORMATS[format]}" if format == "aoti" else FORMATS[format]  # beside pt2, not in its place
        with bar("exporting"):
            exported = export(
                _folded(model, master, variant, source),
                out or output or Path(f"{beside}{variant}{suffix}"),
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


def _opened(source: str) -> tuple[nn.Module, MasterCoefficients | None, str]:
    """The model, its master coefficients where it has any, and how the path of its file begins."""
    if RunFolder(source).exists:
        run = Run(source)
        return run.model, run.master, f"{Path(source) / 'export'}/"
    model = load_model(source)
    packed = next((weights for weights in pretrained_weights() if source in (weights.tag, weights.model)), None)
    master = pretrained_coefficients(packed.model, packed.tag) if packed is not None and packed.has_master else None
    return model, master, f"{Path(source).name}-"


def _folded(model: nn.Module, master: MasterCoefficients | None, variant: str, source: str) -> nn.Module:
    if variant == "as_trained":
        return model
    if variant == "uniform":
        return fold(model, uniform_coefficients(model, replaceable_layers(model) or None))
    if master is None and not RunFolder(source).exists:
        raise ValueError(f"--routing: fast needs master coefficients, and {source!r} has none")
    if master is None:
        missing = RunFolder(source).master
        raise ValueError(f"--routing: fast needs {missing}; `capsroute accumulate {shlex.quote(source)}` makes it")
    return fold(model, master)
