"""The rows of the papers' tables, as `results/rows.toml` lists them: published number, goal, recipe."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["PAPERS", "Row", "load_rows"]

PAPERS = {
    "sabour": "Sabour et al. 2017, Dynamic Routing Between Capsules",
    "zhao": "Zhao et al. 2019, Fast Inference in Capsule Networks Using Accumulated Routing Coefficients",
    "zhao-huang": "Zhao & Huang 2019, Exploring Dynamic Routing As A Pooling Layer",
    "heinsen": "Heinsen 2019, An Algorithm for Routing Capsules in All Domains",
    "tsai": "Tsai et al. 2020, Capsules with Inverted Dot-Product Attention Routing",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One number of a published table and the recipe that makes ours."""

    paper: str  # a key of PAPERS
    name: str  # as the table shows it
    recipe: str  # name of a recipe; its runs are the evidence
    routing: str = "as_trained"  # which evaluation of the run: as_trained, fast or uniform
    test: str = ""  # which test set, where the run has several; empty for the first
    published: float | None = None  # accuracy in per cent
    goal: float | None = None
    above: tuple[str, ...] = ()  # recipes that this row must be better than, on the same test set
    within: float | None = None  # points that a fast row may lose against the same runs' dynamic routing
    seeds: int = 3
    main: bool = False  # whether the README of the repository shows it too
    note: str = ""  # differences from the paper; what was tried; why it was not run

    @property
    def command(self) -> str:
        """What makes this row again."""
        return f"capsroute reproduce {self.paper} --row {self.recipe}"


def load_rows(path: str | Path) -> list[Row]:
    """The rows of a table file, checked: every mistake names the row and the key.

    >>> from capsroute.reproduce import Row
    >>> Row(paper="zhao", name="MNIST, max-min", recipe="zhao-mnist-max-min", published=99.55).command
    'capsroute reproduce zhao --row zhao-mnist-max-min'
    """
    path = Path(path)
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("row", [])
    known = {field.name for field in dataclasses.fields(Row)}
    rows = []
    for number, entry in enumerate(entries, 1):
        unknown, missing = sorted(set(entry) - known), sorted({"paper", "name", "recipe"} - set(entry))
        if unknown or missing:
            raise ValueError(f"{path}: row {number}: unknown keys {unknown}, missing keys {missing}")
        if entry["paper"] not in PAPERS:
            raise ValueError(f"{path}: row {number}: paper: expected one of {sorted(PAPERS)}, got {entry['paper']!r}")
        if "within" in entry and entry.get("routing", "as_trained") == "as_trained":
            raise ValueError(f"{path}: row {number}: within: only a row of another routing can lose against dynamic")
        rows.append(Row(**entry | {"above": tuple(entry.get("above", ()))}))
    return rows
