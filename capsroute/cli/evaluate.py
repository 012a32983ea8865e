"""`capsroute evaluate`: measure the best weights of a run on held-out data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from capsroute.cli.failures import explained
from capsroute.data import load
from capsroute.inference import MasterCoefficients, with_coefficients
from capsroute.training import RunFolder, Splits, evaluate, load_run, load_splits
from capsroute.training.data import plain_batches
from capsroute.training.distributed import World, join_world
from capsroute.training.final import MASTER, measure_speed, variants
from capsroute.training.precision import Precision
from capsroute.training.report import ROUTINGS

Run = Annotated[Path, typer.Argument(help="A run folder.")]
Routing = Annotated[str, typer.Option(help="dynamic, fast or uniform; all of them when not given.")]
Data = Annotated[str, typer.Option("--data", help="Another data set to test on, by name.")]
Split = Annotated[str, typer.Option(help="train, validation or test.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...; otherwise chosen.")]


def register(app: typer.Typer) -> None:
    """Add `capsroute evaluate`."""
    app.command("evaluate")(evaluate_run)


def evaluate_run(
    run: Run, routing: Routing = "all", data: Data = "", split: Split = "test", device: Device = "auto"
) -> None:
    """Accuracy and images a second of a run's best weights, with its own routing, master and uniform coefficients."""
    if routing not in ("all", *ROUTINGS):
        raise typer.BadParameter(f"expected {', '.join(ROUTINGS)} or all, got {routing!r}")
    with explained(), join_world(device) as world:
        table = Table("data", "routing", "accuracy", "images", "images/s")
        for row in _measure(run, routing, data, split, world):
            table.add_row(*row)
        Console().print(table)


def _measure(run: Path, routing: str, data: str, split: str, world: World) -> list[list[str]]:
    recipe, model = load_run(run)
    kept = run / MASTER  # what `capsroute accumulate` or the run itself left
    recipe = recipe.replace(**{"evaluation.fast": not kept.is_file() and (recipe.evaluation.fast or routing == "fast")})
    splits = load_splits(recipe, world.device)
    tested = _held_out(splits, data, split)
    precision = Precision("fp32", world.device)
    made = variants(model.to(world.device), splits, recipe, RunFolder(run), world)
    if kept.is_file():
        made = {"dynamic": model, "fast": with_coefficients(model, MasterCoefficients.load(kept)), **made}
    if routing not in ("all", *made):
        raise ValueError(f"--routing: this model has {', '.join(made)}, got {routing!r}")
    rows = []
    for name, images in tested.items():
        batches = plain_batches(images, splits, recipe, world.device)
        for kind, variant in made.items():
            if routing in ("all", kind):
                metrics = evaluate(variant, batches, recipe.evaluation.two_labels, precision)
                speed = measure_speed(variant, batches, precision)
                accuracy, count = f"{metrics['accuracy']:.2%}", f"{metrics['images']:,}"
                rows.append([f"{name} {split}", ROUTINGS[kind], accuracy, count, f"{speed:,.0f}"])
    return rows


def _held_out(splits: Splits, data: str, split: str) -> dict:
    if data:
        return {data: load(data, split)}
    if split == "test":
        return dict(splits.test)
    chosen = {"train": splits.train, "validation": splits.validation}.get(split)
    if chosen is None:
        raise ValueError(f"--split: expected train, validation or test that this run has, got {split!r}")
    return {next(iter(splits.test)): chosen}
