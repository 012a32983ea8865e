"""The typer application that the subcommand modules add themselves to."""

import importlib

import typer

app = typer.Typer(
    name="capsroute",
    help="Capsule networks: train, evaluate, speed up, look inside.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)

# One module a subcommand, in the order in which --help shows them.
SUBCOMMANDS: tuple[str, ...] = (
    "train",
    "slots",
    "recipes",
    "evaluate",
    "accumulate",
    "export",
    "report",
    "figures",
    "explore",
    "compare",
    "data",
    "models",
    "bench",
    "reproduce",
)

for _name in SUBCOMMANDS:
    importlib.import_module(f"capsroute.cli.{_name}").register(app)
