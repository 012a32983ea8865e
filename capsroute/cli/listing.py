"""What `capsroute recipes` and `capsroute models` share: names by pattern, and entries that fit a narrow terminal."""

from __future__ import annotations

import difflib
import shutil
import textwrap
from collections.abc import Sequence
from fnmatch import fnmatchcase

import typer

MOST = 80  # names that are listed where none was found


def matching(names: Sequence[str], pattern: str | None) -> list[str]:
    """Names that a pattern with wildcards matches; without wildcards, those that contain it.

    >>> from capsroute.cli.listing import matching
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
