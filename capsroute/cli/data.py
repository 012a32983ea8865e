"""`capsroute data`: which data sets there are, and fetching one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn
from rich.table import Table

from capsroute import data

Root = Annotated[
    Path | None, typer.Option(help="Folder of data sets; otherwise CAPSROUTE_DATA, else the cache folder.")
]
Names = Annotated[list[str], typer.Argument(help="Names that `capsroute data list` shows.", metavar="NAME...")]


def register(app: typer.Typer) -> None:
    """Add `capsroute data list` and `capsroute data fetch`."""
    commands = typer.Typer(help="List the data sets of the papers, and fetch them.", no_args_is_help=True)
    commands.command("list")(list_)
    commands.command("fetch")(fetch)
    app.add_typer(commands, name="data")


def list_(root: Root = None) -> None:
    """Show every data set: size, shape, classes, licence, where it comes from, whether it is here."""
    table = Table(box=box.SIMPLE, caption=f"Data sets are kept in {data.data_root(root)}", caption_justify="left")
    for heading in ("name", "what", "train + validation / test", "shape", "classes", "licence", "from", "here"):
        table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "shape"))
    for info in data.list_datasets():
        table.add_row(
            info.name,
            info.title,
            f"{info.sizes['train']:,} + {info.sizes['validation']:,} / {info.sizes['test']:,}",
            "x".join(map(str, info.shape)) or "text",
            str(len(info.classes)),
            info.licence,
            info.origin,
            "yes" if info.is_here(root) else "no",
        )
    Console().print(table)


def fetch(names: Names, root: Root = None) -> None:
    """Fetch data sets, verify their checksums, and keep them; a set that is here already is left alone."""
    console = Console(stderr=True)
    for name in names:
        try:
            with Progress(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), console=console) as progress:
                task = progress.add_task(name, total=None)

                def report(text: str, done: int, total: int | None, task=task, progress=progress, name=name) -> None:
                    progress.update(task, description=f"{name}: {text[-60:]}", completed=done, total=total)

                folder = data.fetch(name, root, report)
        except (data.FetchError, data.DataError, ValueError) as error:
            console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
        typer.echo(f"{name}: {folder if folder else 'built in, nothing to fetch'}")
