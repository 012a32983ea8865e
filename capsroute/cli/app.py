"""The typer application: its commands, and what all of them understand."""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from capsroute import __version__
from capsroute.cli import (
    accumulate,
    bench,
    data,
    evaluate,
    explore,
    export,
    figures,
    models,
    predict,
    recipes,
    runs,
    slots,
    train,
)
from capsroute.cli.failures import explained

IMPORT = "--import"


class Commands(TyperGroup):
    """The commands; `--import` may stand before the command, as click wants it, or after, as people write it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        first: list[str] = []
        rest: list[str] = []
        words = iter(args)
        for word in words:
            if word == IMPORT:
                first += [word, *([following] if (following := next(words, None)) is not None else [])]
            else:
                (first if word.startswith(f"{IMPORT}=") else rest).append(word)
        return super().parse_args(ctx, first + rest)


app = typer.Typer(
    cls=Commands,
    name="capsroute",
    help="Capsule networks: train, evaluate, speed up, look inside.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)

Imports = Annotated[
    list[str],
    typer.Option(
        IMPORT,
        metavar="MODULE",
        help="Import this module first, also from the current folder: models, routings and data sets that it registers "
        "can then be named. Can be repeated.",
    ),
]


def print_version(asked: bool) -> None:
    """Answer `--version`."""
    if asked:
        typer.echo(f"capsroute {__version__}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and end.", callback=print_version, is_eager=True)
]


@app.callback()
def before_all(version: Version = False, imports: Imports = []) -> None:  # noqa: B006
    """Capsule networks: train, evaluate, speed up, look inside."""
    if imports and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in imports:
        with explained():
            import_module(name)


def import_module(name: str) -> None:
    """Import a module of the user's; one that is not there is named, whatever it raises itself is shown whole."""
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # something that the module itself lacks
        raise ValueError(f"--import: no module {name!r} in {os.getcwd()} or among those installed") from None


# In the order in which --help shows them.
COMMANDS: dict[str, Callable[..., None]] = {
    "train": train.train,
    "slots": slots.slots,
    "recipes": recipes.recipes,
    "evaluate": evaluate.evaluate_run,
    "accumulate": accumulate.accumulate_run,
    "export": export.export_model,
    "predict": predict.predict_files,
    "report": runs.report,
    "figures": figures.figures,
    "explore": explore.explore,
    "compare": runs.compare,
    "models": models.list_,
    "bench": bench.bench,
    "warm": models.warm,
}
for _name, _command in COMMANDS.items():
    app.command(_name)(_command)
app.add_typer(data.commands, name="data")
