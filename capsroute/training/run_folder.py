"""The folder of a run: what lies where, written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import tomli_w

from capsroute.analysis.epochs import read_metrics
from capsroute.files import write_atomically
from capsroute.training.checkpoint import Checkpoints
from capsroute.training.recipe import Recipe, load_recipe

__all__ = ["RunFolder", "choose_folder"]


class RunFolder:
    """Paths and files of one run.

    recipe.toml (as resolved), environment.json, metrics.csv (a line an epoch), checkpoints/, best/ and last/ (folders
    that `cr.load_model` reads), result.json (once finished), report.md with its pictures, tensorboard/.

    >>> from capsroute.training.run_folder import RunFolder
    >>> RunFolder("runs/mine").best.as_posix()
    'runs/mine/best'
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.best, self.last = self.path / "best", self.path / "last"
        self.master = self.path / "master.safetensors"  # accumulated coefficients
        self.checkpoints = Checkpoints(self.path / "checkpoints")

    @property
    def exists(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "recipe.toml").is_file()

    @property
    def finished(self) -> bool:
        """Whether the run that was started here came to its end."""
        return (self.path / "result.json").is_file()

    def recipe(self, overrides: list[str] | None = None) -> Recipe:
        """The recipe as it was resolved when the run began."""
        if not self.exists:
            raise ValueError(f"run: expected a run folder with a recipe.toml, got '{self.path}'")
        return load_recipe(self.path / "recipe.toml", overrides)

    def start(self, recipe: Recipe, environment: dict[str, Any], resume: bool = False) -> None:
        """Write down what is about to run; a run that goes on keeps what was written when it began."""
        if resume and (self.path / "environment.json").is_file():
            began = self.read("environment.json")
            environment = {**began, "resumed": [*began.get("resumed", []), environment]}
        self.write("environment.json", environment)
        # Last: the folder counts as a run from here on.
        write_atomically(self.path / "recipe.toml", tomli_w.dumps(recipe.plain()).encode())

    def write(self, name: str, content: dict[str, Any]) -> None:
        """A JSON file."""
        write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file."""
        path = self.path / name
        if not path.is_file():
            raise ValueError(f"run: expected {name} in '{self.path}'; has the run finished?")
        return _renamed(json.loads(path.read_text(encoding="utf-8")))

    def write_metrics(self, history: list[dict[str, float]]) -> None:
        """metrics.csv, one line an epoch."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([{key: _short(value) for key, value in row.items()} for row in history])
        write_atomically(self.path / "metrics.csv", text.getvalue().encode())

    def read_metrics(self) -> list[dict[str, float]]:
        """The lines of metrics.csv."""
        return read_metrics(self.path)


def _renamed(content: dict[str, Any]) -> dict[str, Any]:
    """What older versions called "dynamic" is the model as trained, whatever its routing."""

    def new(tested: dict[str, Any]) -> dict[str, Any]:
        return {"as_trained" if variant == "dynamic" else variant: found for variant, found in tested.items()}

    if "tests" in content:
        content["tests"] = {name: new(tested) for name, tested in content["tests"].items()}
    return {**content, "test": new(content["test"])} if "test" in content else content


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def choose_folder(name: str, root: str | os.PathLike[str] = "runs", resume: bool = False) -> Path:
    """`root/name`, or the next free `root/name-2`, ...; to resume, the last of these that was started."""
    used: list[Path] = []
    for number in range(1, 1_000_000):
        path = Path(root) / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return used[-1] if resume and used else path
        used.append(path)
    raise ValueError(f"root: '{root}' holds a million runs of {name!r} already")
