"""Every look at test data is written down: a test set that is looked at after each change is a validation set."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path

from capsroute.training.environment import revision
from capsroute.training.recipe import Recipe

__all__ = ["LOOKS", "record_look"]

LOOKS = "looks.csv"  # in a run folder; CAPSROUTE_LOOKS names one more file, for all runs
COLUMNS = ("when", "recipe", "seed", "test", "revision")


def record_look(run: str | os.PathLike[str], recipe: Recipe, tests: Iterable[str]) -> None:
    """Add a line for each test set that was just looked at to `looks.csv` of the run.

    >>> import tempfile, capsroute as cr
    >>> from capsroute.training.looks import record_look
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record_look(folder, cr.training.load_recipe("quickstart"), ["digits"])
    ...     (cr.training.RunFolder(folder).path / "looks.csv").read_text().splitlines()[0]
    'when,recipe,seed,test,revision'
    """
    when = datetime.now(timezone.utc).isoformat(timespec="seconds")
    rows = [(when, recipe.name, recipe.training.seed, test, revision() or "") for test in tests]
    elsewhere = os.environ.get("CAPSROUTE_LOOKS")
    for path in [Path(run) / LOOKS, *([Path(elsewhere)] if elsewhere else [])]:
        new = not path.exists()
        with path.open("a", newline="", encoding="utf-8") as file:  # lines are only ever added
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([COLUMNS, *rows] if new else rows)
