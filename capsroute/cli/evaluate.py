"""`capsroute evaluate`: measure the best weights of a run on held-out data."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsroute.cli.failures import explained
from capsroute.cli.names import Device, RunPath, parse_variant
from capsroute.data import list_datasets, load
from capsroute.data.images.listing import PARTS
from capsroute.data.images.path import looks_like_path, name_of
from capsroute.naming import did_you_mean
from capsroute.training import Run
from capsroute.training.distributed import World, join_world
from capsroute.training.evaluation import VARIANTS
from capsroute.training.own_images import has_data, load_others
from capsroute.training.precision import Precision
from capsroute.training.report import result_rows
from capsroute.training.run import measure_variants
from capsroute.training.run_folder import record_look

Routing = Annotated[str, typer.Option(help=f"{', '.join(VARIANTS)}; all of them when not given.")]
Data = Annotated[str, typer.Option("--data", help="Another data set to test on: its name, or the path of your own.")]
Split = Annotated[str, typer.Option(help="train, validation or test.")]


def evaluate_run(
    run: RunPath, routing: Routing = "all", data: Data = "", split: Split = "test", device: Device = "auto"
) -> None:
    """Accuracy and images per second of a run's best weights, as trained, with uniform and with master coefficients.

    The last where the run left some; `--routing fast` makes them from its training images.
    """
    with explained(), join_world(device) as world:
        table = Table("data", "routing", "accuracy", "images", "images/s")
        opened = _opened(run, data, world)
        tests = _measure(opened, parse_variant(routing, "all"), data, split, world)
        looked = split == "test" and (data or opened.recipe.evaluation.on == "test")
        if looked and world.first:
            record_look(opened.folder.path, opened.recipe, [name.removesuffix(" test") for name in tests])
        for row in result_rows({"tests": tests}):
            table.add_row(*row)
        Console().print(table)


def _opened(folder: Path, data: str, world: World) -> Run:
    """The run; where its own data cannot be found any more, `data` says where they are."""
    run = Run(folder, world.device)
    return run if not data or has_data(run.recipe) else Run(folder, world.device, data=data)


def _measure(run: Run, wanted: str, data: str, split: str, world: World) -> dict[str, Any]:
    if run.master is None and (run.recipe.evaluation.fast or wanted == "fast"):
        run.accumulate(world=world, shown=world.first)
    tested, found = _held_out(run, data, split), run.variants()
    if wanted not in ("all", *found):
        raise ValueError(f"--routing: this run has no {wanted!r}: {run.refusals[wanted]}")
    chosen = {variant: model for variant, model in found.items() if wanted in ("all", variant)}
    tests = measure_variants(run, tested, chosen, world, Precision("fp32", world.device), shown=world.first)
    return {f"{name} {split}": metrics for name, metrics in tests.items()}


def _held_out(run: Run, data: str, split: str) -> dict[str, Any]:
    if split not in PARTS:
        raise ValueError(f"--split: expected train, validation or test, got {split!r}")
    if data and data in [info.name for info in list_datasets()]:
        return {data: load(data, split)}
    if data and run.data is None:
        if not looks_like_path(data):
            near = did_you_mean(data, [info.name for info in list_datasets()])
            raise ValueError(f"--data: no images at {data!r}, nor a name that `capsroute data list` shows{near}")
        return {name_of(data): load_others(data, split, run.model.input_shape, run.classes or ())}
    if split == "test":
        return dict(run.splits.test)
    chosen = run.splits.train if split == "train" else run.splits.validation
    if chosen is None:
        raise ValueError(f"--split: this run has no {split} images")
    return {next(iter(run.splits.test), split): chosen}
