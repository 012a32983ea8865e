"""The folder of a run: what lies where, written whole or not at all. Every look at test data is written
down: a test set that is looked at after each change is a validation set."""

from __future__ import annotations

import csv
import io
import json
import os
import socket
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import tomli_w

from capsroute.analysis.training_curves import read_metrics
from capsroute.files import lock_file, write_atomically
from capsroute.naming import did_you_mean_beside
from capsroute.training.checkpoint import Checkpoints
from capsroute.training.environment import revision
from capsroute.training.recipe import Recipe, load_recipe

LOCK = ".lock"
# What may differ when a run goes on: how and where it is computed, how long, what is written and measured; never what.
FREE = (
    "training.accumulate",
    "training.compile",
    "training.cuda_graphs",
    "training.device",
    "training.max_steps",
    "training.threads",
    "checkpoint",
    "data.path",  # images that were moved
    "data.store",  # where they are kept: the batches are the same
    "data.memory_limit",
    "data.workers",
    "evaluation",
    "logging",
)
# What a run writes down of images of the user's own: not asked for again means not changed.
RECORDED = ("data.channels", "data.classes", "data.cut", "data.image_size", "data.path")


class RunFolder:
    """Paths and files of one run.

    recipe.toml (as resolved), environment.json, metrics.csv (a line per epoch), checkpoints/, best/ and last/ (folders
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

    @property
    def complete(self) -> bool:
        """Whether the run was trained to its last epoch, not only to `training.max_steps`, and tested."""
        return self.finished and self.read("result.json")["epochs"] >= self.recipe().training.epochs

    def recipe(self, overrides: list[str] | None = None) -> Recipe:
        """The recipe as it was resolved when the run began."""
        if not self.exists:
            near = did_you_mean_beside(self.path, "recipe.toml")
            raise ValueError(f"run: expected a run folder with a recipe.toml, got '{self.path}'{near}")
        return load_recipe(self.path / "recipe.toml", overrides)

    @contextmanager
    def held(self, fresh: bool = False) -> Iterator[None]:
        """The folder is ours, made if need be, while this lasts: another process that wants it is refused.

        The lock is the kernel's: that of a process that was killed is free at once. A `fresh` folder that nothing was
        written to is removed again.
        """
        made = fresh or not self.path.exists()
        self.path.mkdir(parents=True, exist_ok=True)
        own = {"host": socket.gethostname(), "pid": os.getpid(), "since": _now()}
        try:
            with lock_file(self.path / LOCK, json.dumps(own).encode()) as other:
                if other is not None:
                    raise ValueError(f"run: '{self.path}' is in use: {_holder(other)}")
                yield
        finally:
            if made:
                with suppress(OSError):
                    self.path.rmdir()

    def check_resumable(self, recipe: Recipe) -> None:
        """Raise ValueError where going on with `recipe` would change the meaning of what was done."""
        if self.recipe().smoke or recipe.smoke:
            raise ValueError(f"run: '{self.path}': a smoke test is two steps on noise, and cannot be gone on with")
        began = _flat(self.recipe().plain())
        asked = _flat(recipe.plain())
        asked = {**{key: began[key] for key in RECORDED if key in began}, **asked}
        changed = [key for key in {**began, **asked} if began.get(key) != asked.get(key)]
        binding = [key for key in changed if not any(key == free or key.startswith(f"{free}.") for free in FREE)]
        if binding:
            key = binding[0]
            raise ValueError(
                f"run: '{self.path}' was begun with {key} = {began.get(key)!r}; going on with "
                f"{asked.get(key)!r} would change the meaning of what was done: start a new run"
            )
        if changed and self.complete:
            key = changed[0]
            raise ValueError(
                f"run: '{self.path}' is finished and stays as it is; {key} = {asked.get(key)!r} needs a new run"
            )

    def start(self, recipe: Recipe, environment: dict[str, Any], resume: bool = False) -> None:
        """Write down what is about to run; a run that goes on keeps what was written when it began."""
        if resume and (self.path / "environment.json").is_file():
            began = self.read("environment.json")
            environment = {**began, "resumed": [*began.get("resumed", []), environment]}
        self.write("environment.json", environment)
        # Last: the folder counts as a run from here on.
        write_atomically(self.path / "recipe.toml", tomli_w.dumps(_without_none(recipe.plain())).encode())

    def write(self, name: str, content: dict[str, Any]) -> None:
        """A JSON file."""
        write_atomically(self.path / name, (json.dumps(content, indent=2) + "\n").encode())

    def read(self, name: str) -> dict[str, Any]:
        """A JSON file."""
        path = self.path / name
        if not path.is_file():
            raise ValueError(f"run: expected {name} in '{self.path}'; has the run finished?")
        try:
            return _renamed(json.loads(path.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ValueError(f"{path}: expected whole JSON, found something else ({error})") from None

    def write_metrics(self, history: list[dict[str, float]]) -> None:
        """metrics.csv, one line per epoch."""
        text = io.StringIO()
        writer = csv.DictWriter(text, list(history[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([{key: v if isinstance(v, int) else f"{v:.7g}" for key, v in row.items()} for row in history])
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


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _holder(content: bytes) -> str:
    try:
        other = json.loads(content)
        return f"process {other['pid']} on {other['host']} has been training there since {other['since']}"
    except (ValueError, KeyError, TypeError):
        return "another process is training there"


def _without_none(content: Any) -> Any:
    """Plain data without what is None, for which TOML has no word."""
    if isinstance(content, dict):
        return {key: _without_none(value) for key, value in content.items() if value is not None}
    return [_without_none(value) for value in content] if isinstance(content, list) else content


def _flat(content: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted names."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) and value else {f"{path}{key}": value}
    return flat


def choose_folder(name: str, root: str | os.PathLike[str] = "runs", resume: bool = False) -> Path:
    """`root/name`, or the next free `root/name-2`, ..., made here and now; to resume, the last that was started.

    Making it is what decides between two that start at once: a folder can be made only once.
    """
    last: Path | None = None
    for number in range(1, 1_000_000):
        path = Path(root) / (name if number == 1 else f"{name}-{number}")
        if resume:
            if path.exists():
                last = path
                continue
            if last is not None:
                return last
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise ValueError(f"root: '{root}' holds a million runs of {name!r} already")


LOOKS = "looks.csv"  # in a run folder; CAPSROUTE_LOOKS names one more file, for all runs
COLUMNS = ("when", "recipe", "seed", "test", "revision")


def record_look(run: str | os.PathLike[str], recipe: Recipe, tests: Iterable[str]) -> None:
    """Add a line for each test set that was just looked at to `looks.csv` of the run; a warning where it cannot be
    written.

    >>> import tempfile, capsroute as cr
    >>> from capsroute.training.run_folder import record_look
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     record_look(folder, cr.training.load_recipe("quickstart"), ["digits"])
    ...     (cr.training.RunFolder(folder).path / "looks.csv").read_text().splitlines()[0]
    'when,recipe,seed,test,revision'
    """
    rows = [(_now(), recipe.name, recipe.training.seed, test, revision() or "") for test in tests]
    elsewhere = os.environ.get("CAPSROUTE_LOOKS")
    for path in [Path(run) / LOOKS, *([Path(elsewhere)] if elsewhere else [])]:
        new = not path.exists()
        try:
            with path.open("a", newline="", encoding="utf-8") as file:  # lines are only ever added
                writer = csv.writer(file, lineterminator="\n")
                writer.writerows([COLUMNS, *rows] if new else rows)
        except OSError as error:  # somebody else's run, or one on a disk that is only read
            warnings.warn(f"{path}: this look at test data could not be written down ({error})", stacklevel=2)
