"""`capsroute accumulate`: master coefficients of a run, from its training data (Zhao et al. 2019, section 5)."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsroute.bars import watched
from capsroute.cli.failures import explained
from capsroute.cli.names import Device, MovedData, OldOutput, RunPath
from capsroute.inference import MasterCoefficients, accumulate, finetune, given_coefficients, make_filter
from capsroute.inference.accumulation import COLUMNS, NORMALISE
from capsroute.inference.coefficients import layers_for_coefficients
from capsroute.naming import check_one_of
from capsroute.training import Run
from capsroute.training.data import training_batches
from capsroute.training.distributed import World, join_world

Chosen = Annotated[
    str,
    typer.Option(
        "--filter",
        help="Which images count: none, similarity, clustering or correct, with options after a colon, as in "
        "similarity:fraction=0.8,measure=dot.",
    ),
]
Iteration = Annotated[int, typer.Option(min=0, help="Which routing iteration's coefficients; 0 for the last.")]
Columns = Annotated[str, typer.Option(help="all, or ground_truth to accumulate nothing else.")]
Normalise = Annotated[str, typer.Option(help="routing (as the paper), or none for plain means.")]
Layers = Annotated[list[str], typer.Option("--layer", help="A routed layer; repeat for several. Otherwise all.")]
Learn = Annotated[int, typer.Option(min=0, help="So many epochs of learning the coefficients by gradient afterwards.")]
Out = Annotated[Path | None, typer.Option("--out", help="Where to; otherwise master.safetensors in the run folder.")]


def accumulate_run(
    run: RunPath,
    filter: Chosen = "none",
    iteration: Iteration = 0,
    columns: Columns = "all",
    normalise: Normalise = "routing",
    layers: Layers = [],  # noqa: B006
    learn: Learn = 0,
    out: Out = None,
    data: MovedData = None,
    device: Device = "auto",
    output: OldOutput = None,
) -> None:
    """Average the routing coefficients of a run over its training images, for inference without routing."""
    options: dict[str, Any] = {"columns": columns, "normalise": normalise, "layers": layers or None}
    with explained(), join_world(device) as world:
        # First what needs no images: to read them may take long.
        check_one_of("--columns", columns, COLUMNS)
        check_one_of("--normalise", normalise, NORMALISE)
        if learn and world.size > 1:
            raise ValueError(f"--learn: one process learns coefficients, got {world.size}")
        options |= {"filter": make_filter(parse_filter(filter)), "iteration": iteration or None}
        opened = Run(run, world.device, data=data)
        layers_for_coefficients(opened.model, options["layers"])
        master = _accumulated(opened, options, learn, world)
        path = out or output or opened.folder.master
        if world.first:
            master.save(path)
            Console().print(_table(master))
            measured = f"; measure them with `capsroute evaluate {shlex.quote(str(run))} --routing fast`"
            typer.echo(f"written to {path}{measured if path == opened.folder.master else ''}")


def parse_filter(text: str) -> dict[str, Any]:
    """A filter and its options from one word of a command line.

    >>> from capsroute.cli.accumulate import parse_filter
    >>> parse_filter("similarity:fraction=0.5,measure=dot")
    {'name': 'similarity', 'fraction': 0.5, 'measure': 'dot'}
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {"name": name}
    for part in filter(None, rest.split(",")):
        option, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"--filter: expected options as NAME=VALUE, got {part!r}")
        try:
            options[option] = json.loads(value)
        except ValueError:
            options[option] = value
    return options


def _accumulated(run: Run, options: dict[str, Any], learn: int, world: World) -> MasterCoefficients:
    share = watched(run.batches(run.splits.train, world), "accumulating", world.first)
    master = accumulate(run.model, share, **options)
    if not learn:
        return master
    batches = training_batches(run.splits, run.recipe, run.device)
    learned = given_coefficients(finetune(run.model, master, batches, epochs=learn))
    return MasterCoefficients(learned.layers, master.counts, {**master.how, "learned epochs": learn})


def _table(master: MasterCoefficients) -> Table:
    table = Table("layer", "children", "parents", "rows", "smallest", "mean", "largest")
    for name, matrix in master.layers.items():
        sizes = [f"{size:,}" for size in matrix.shape]
        numbers = [f"{value:.3f}" for value in (matrix.min(), matrix.mean(), matrix.max())]
        table.add_row(name, *sizes, master.how["normalisation"][name], *numbers)
    kept, seen = int(master.counts.sum()), master.how["examples"]
    table.title = f"{kept:,} of {seen:,} images; {master.how['accuracy']:.2%} of all classified correctly"
    return table
