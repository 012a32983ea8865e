"""`capsroute train`: run a recipe. Without one: a small capsule network on digits, in about a minute."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from capsroute.cli.failures import explained
from capsroute.cli.names import completing
from capsroute.training import Recipe, RunFolder, RunResult, fit, list_recipes, load_recipe
from capsroute.training.distributed import is_first, join_world
from capsroute.training.evaluation import VARIANTS
from capsroute.training.fit import fit_seeds
from capsroute.training.own_images import train_on
from capsroute.training.recipe import IMAGES, QUICKSTART
from capsroute.training.report import published, result_rows
from capsroute.training.run_folder import choose_folder
from capsroute.training.smoke import smoke_recipe, smoke_splits

RecipeName = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE",
        help="A TOML file, a name that `capsroute recipes` lists, or a run folder.",
        autocompletion=completing(list_recipes),
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="PATH",
        help="Your own images: class folders, a .csv of path,label, an .npz, or shards. The recipe is then `images`.",
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at a file of --data that cannot be read.")]
Overrides = Annotated[
    list[str], typer.Option("--set", metavar="A.B=C", help="Override a setting, e.g. training.epochs=5.")
]
Folder = Annotated[Path | None, typer.Option("--out", help="Run folder; otherwise runs/RECIPE, numbered if taken.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint of the run folder.")]
Seeds = Annotated[int, typer.Option(min=1, help="Run with so many seeds; report mean and spread.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Two steps on generated data shaped like the real set.")]


def train(
    recipe: RecipeName = QUICKSTART,
    data: Data = None,
    strict: Strict = False,
    overrides: Overrides = [],  # noqa: B006
    out: Folder = None,
    resume: Resume = False,
    seeds: Seeds = 1,
    smoke: Smoke = False,
) -> None:
    """Train a network as a recipe says, test it once, and keep everything in a run folder."""
    with explained():
        if smoke and (resume or seeds > 1):
            raise ValueError("--smoke: two steps on noise, once; it goes with neither --resume nor --seeds")
        if data is not None and recipe == QUICKSTART:
            recipe = IMAGES
        # A run that goes on has images of its own; they may have moved.
        moved = [] if data is None else [f"data.path={json.dumps(str(data.expanduser().absolute()))}"]
        goes_on = RunFolder(recipe).exists
        chosen = _load(recipe, [*overrides, *(moved if goes_on else [])], resume)
        if data is not None and not goes_on:
            chosen, said = train_on(chosen, data, strict)
            if is_first() and not resume:  # a run that goes on keeps what was decided when it began
                typer.echo(said)
        with join_world(chosen.training.device) as world:
            # Only the first process can be relied on to see the folder.
            place = partial(_choose, recipe, chosen, [*overrides, *moved], out, resume)
            folder, settings = world.first_does(place)
            chosen = Recipe.of(settings)
            if seeds > 1:
                folder = world.first_does(lambda: folder or choose_folder(chosen.name))
                _show_summary(fit_seeds(chosen, seeds, folder, resume), folder)
                return
            splits = None
            if smoke:
                chosen = smoke_recipe(chosen)
                splits = smoke_splits(chosen)
            _show(fit(None, splits, chosen, folder, resume=resume), chosen)


def _load(recipe: str, overrides: list[str], resume: bool) -> Recipe:
    given = RunFolder(recipe)
    if given.exists and not resume:
        raise ValueError(f"recipe: '{recipe}' is a run folder; add --resume to go on with it")
    return given.recipe(overrides) if given.exists else load_recipe(recipe, overrides)


def _choose(
    recipe: str, chosen: Recipe, overrides: list[str], out: Path | None, resume: bool
) -> tuple[Path | None, dict[str, Any]]:
    """The run folder, None for a fresh one; and the recipe: that of the folder itself when a run is resumed."""
    given = RunFolder(recipe)
    if not given.exists and out is None and not resume:
        return None, chosen.plain()
    folder = given if given.exists else RunFolder(out or choose_folder(chosen.name, resume=True))
    if folder.exists and not resume:
        raise ValueError(f"--out: '{folder.path}' holds a run already; add --resume to go on with it, or name another")
    return folder.path, (folder.recipe(overrides) if folder.exists else chosen).plain()


def _show(run: RunResult, recipe: Recipe) -> None:
    if not is_first():
        return
    if recipe.smoke:
        Console().print(f"smoke test of {recipe.name} passed: two steps on noise, nothing in {run.folder} is a result")
        return
    table = Table(title=recipe.name, title_justify="left")
    for heading in ("test set", "routing", "accuracy", "images", "images/s"):
        table.add_column(heading, justify="left" if heading in ("test set", "routing") else "right")
    for row in result_rows(run.result):
        table.add_row(*row)
    console = Console()
    console.print(table)
    if recipe.paper is not None:
        console.print(f"published: {published(recipe)}", highlight=False)
    seconds = run.result["train_seconds"]
    console.print(f"{run.result['parameters']:,} parameters, trained in {seconds:.0f} s", highlight=False)
    made = "weights, report and pictures" if recipe.evaluation.pictures else "weights and report"
    console.print(f"{made}: {run.folder}", markup=False, highlight=False, soft_wrap=True)


def _show_summary(summary: dict[str, Any], folder: Path) -> None:
    if not is_first():
        return
    table = Table("test set", "routing", "mean", "spread", "n", title=f"{len(summary['seeds'])} seeds")
    for name, tested in summary["tests"].items():
        for routing, values in tested.items():
            table.add_row(name, VARIANTS[routing], f"{values['mean']:.2%}", f"{values['spread']:.2%}", str(values["n"]))
    Console().print(table)
    Console().print(f"runs: {folder}", markup=False, highlight=False, soft_wrap=True)
