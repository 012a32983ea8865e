"""Words of a command line that commands share: options, and names that are completed, matched, corrected, and listed so
that they fit a narrow terminal."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import typer

from capsroute.deprecation import warn_deprecated
from capsroute.models import pretrained_weights
from capsroute.naming import check_one_of
from capsroute.training.evaluation import VARIANTS

# Arguments and options that several commands have.
RunPath = Annotated[Path, typer.Argument(help="A run folder.", metavar="RUN")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...; otherwise chosen.")]
MovedData = Annotated[Path | None, typer.Option("--data", help="Where the run's own images are, if they moved.")]


def _old_output(given: Path | None) -> Path | None:
    if given is not None:
        warn_deprecated("--output", "--out", since="0.2")
    return given


OldOutput = Annotated[Path | None, typer.Option("--output", hidden=True, callback=_old_output)]

MOST = 80  # names that are listed where none was found


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """What a shell asks while a word is typed: those of the names that begin so.

    >>> from capsroute.cli.names import completing
    >>> completing(lambda: ["quickstart", "images"])("quick")
    ['quickstart']
    """

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def list_tags() -> list[str]:
    """Tags of the packaged weights."""
    return [weights.tag for weights in pretrained_weights()]


def matching(names: Sequence[str], pattern: str | None) -> list[str]:
    """Names that a pattern with wildcards matches; without wildcards, those that contain it.

    >>> from capsroute.cli.names import matching
    >>> matching(["sabour-mnist", "zhao-mnist", "zhao-cifar10"], "zhao-*"), matching(["sabour-mnist", "zhao"], "mnist")
    (['zhao-mnist', 'zhao-cifar10'], ['sabour-mnist'])
    """
    if not pattern:
        return list(names)
    if not set(pattern) & set("*?["):
        return [name for name in names if pattern in name]
    return [name for name in names if fnmatchcase(name, pattern)]


def show_entry(name: str, facts: str, text: str) -> None:
    """A name, never cut, with its facts beside it where they fit; a text under it, wrapped to the terminal."""
    width = max(40, shutil.get_terminal_size().columns)
    typer.secho(name, bold=True, nl=False)
    beside = len(name) + len(facts) + 2 <= width
    typer.echo("" if not facts else f"  {facts}" if beside else f"\n    {facts}")
    for line in textwrap.wrap(text, width - 4, break_long_words=False, break_on_hyphens=False):
        typer.echo(f"    {line}")


def nothing_found(what: str, asked: str, names: Sequence[str], pattern: str) -> typer.Exit:
    """Says what was looked for, what is near and what there is; the exit status is 1."""
    near = difflib.get_close_matches(pattern.strip("*?"), names, 1, 0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    typer.echo(f"no {what} matches {asked}{hint}", err=True)
    listed = ", ".join(names) if len(names) <= MOST else f"{len(names)}, which `capsroute {what}s` lists"
    typer.echo(textwrap.fill(f"there are: {listed}", 80, break_on_hyphens=False), err=True)
    return typer.Exit(1)


def parse_variant(given: str, *more: str) -> str:
    """A variant by its name, or one of `more`; "dynamic" is what "as_trained" was called before 0.2.

    >>> from capsroute.cli.names import parse_variant
    >>> parse_variant("as_trained"), parse_variant("all", "all")
    ('as_trained', 'all')
    """
    if given == "dynamic":
        warn_deprecated("--routing dynamic", "--routing as_trained, whatever the routing is", since="0.2")
        return "as_trained"
    name = given.replace("-", "_")
    check_one_of("--routing", name, [*VARIANTS, *more])
    return name
