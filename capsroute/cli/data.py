"""`capsroute data`: which data sets there are, fetching one, and packing a folder into shards."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn

from capsroute import data
from capsroute.bars import bar
from capsroute.cli.failures import explained
from capsroute.cli.names import completing
from capsroute.data.images.listing import Listing
from capsroute.data.images.path import list_images
from capsroute.data.images.shards import PER_SHARD
from capsroute.data.images.shards import pack as write_shards

Root = Annotated[
    Path | None, typer.Option(help="Folder of data sets; otherwise CAPSROUTE_DATA, else the cache folder.")
]
Names = Annotated[
    list[str],
    typer.Argument(
        help="Names that `capsroute data list` shows.",
        metavar="NAME...",
        autocompletion=completing(lambda: [info.name for info in data.list_datasets()]),
    ),
]
Folder = Annotated[Path, typer.Argument(help="A folder of class folders, or a .csv of path,label.")]
Shards = Annotated[Path, typer.Argument(help="What the files are called: SHARDS-0000.tar and so on.")]
PerShard = Annotated[int, typer.Option(min=1, help="Pictures in a file.")]
COLUMNS = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())


commands = typer.Typer(help="List the data sets of the papers, fetch them, pack your own.", no_args_is_help=True)


@commands.command("list")
def list_(root: Root = None) -> None:
    """Show every data set: size, shape, classes, licence, where it comes from, whether it is here."""
    for info in data.list_datasets():
        sizes = ", ".join(f"{count:,} {split}" for split, count in info.sizes.items())
        shape = "x".join(map(str, info.shape)) or "text"
        typer.secho(info.name, bold=True, nl=False)
        typer.echo(f"  {'[here]' if info.is_here(root) else '[not here]'}  {info.title}")
        typer.echo(f"    {sizes}; {shape}; {len(info.classes)} classes")
        typer.echo(f"    licence: {info.licence}; from {info.origin}")
    typer.echo(f"Data sets are kept in {data.data_root(root)}")


@commands.command()
def fetch(names: Names, root: Root = None) -> None:
    """Fetch data sets, verify their checksums, and keep them; a set that is here already is left alone."""
    console = Console(stderr=True)
    for name in names:
        try:
            with Progress(*COLUMNS, console=console, transient=True) as progress:
                folder = data.fetch(name, root, partial(_show, progress, progress.add_task(name, total=None)))
        except (data.FetchError, ValueError) as error:
            console.print(str(error), markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from None
        typer.echo(f"{name}: {folder if folder else 'built in, nothing to fetch'}")


@commands.command()
def pack(folder: Folder, shards: Shards, per_shard: PerShard = PER_SHARD) -> None:
    """Write the pictures of a folder, as they are, into tar files that this and the WebDataset library read."""
    with explained():
        listing = list_images(folder)
        if type(listing) is not Listing:
            raise ValueError(f"{folder}: expected a folder of class folders or a .csv of path,label")
        with bar("packing", -(-len(listing) // per_shard)) as advance:
            written = write_shards(listing, shards, per_shard, lambda done: advance(1))
    last = written[-1].stem.rsplit("-", 1)[1]
    name = f"{shards}-{{{'0' * len(last)}..{last}}}.tar" if len(written) > 1 else str(written[0])
    typer.echo(f'{len(listing):,} images of {len(listing.classes)} classes; train on them with --data "{name}"')


def _show(progress: Progress, task: TaskID, text: str, done: int, total: int | None) -> None:
    progress.update(task, description=text[-60:], completed=done, total=total)
