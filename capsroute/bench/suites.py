"""Which rows a suite is made of, and where they are written."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capsroute.bench.cases import CONV_CASES, LARGE_CASES, PAPER_CASES, SIZE_CASES, SMALL_CASES, Case
from capsroute.bench.grid import run_grid
from capsroute.bench.models import ways
from capsroute.bench.report import draw, table, write_csv
from capsroute.bench.run import DTYPES, Row, allow_tf32, as_dicts, hardware, implementations, measure_case, versions
from capsroute.bench.sweeps import exponent, sweeps
from capsroute.bench.tasks import CaseTask, FoldedTask, ModelTask, Task
from capsroute.bench.workers import Workers

__all__ = ["SUITES", "Options", "run_suites", "tasks_of"]

CASES = {
    "paper": PAPER_CASES, "small": SMALL_CASES, "large": LARGE_CASES, "conv": CONV_CASES, "sizes": SIZE_CASES,
}  # fmt: skip
SUITES = (*CASES, "models", "folded", "sweeps", "grid")
Say = Callable[[str], None]
SWEPT = ("dynamic", "heinsen", "inverted_attention", "em", "max_min")
DOUBLINGS = {"cpu": 5, "cuda": 16}
LONGEST = {"cpu": 1000.0, "cuda": 50.0}  # milliseconds of a step; a sweep does not go on beyond it


@dataclasses.dataclass(frozen=True)
class Options:
    """What all suites are told: where, in which dtypes, whether to compile, which cases, in how many processes."""

    device: str
    dtypes: Sequence[str]
    out: Path
    compiled: bool = True
    only: str = ""  # texts between bars, one of which a name holds
    jobs: int = 0  # processes that compile first (CUDA only); 0: this one does everything
    prepare_limit: float = 600.0  # seconds; what was not compiled by then is not measured
    after: Path | None = None  # a file: until it exists something else has the chip, so only compile
    say: Say = print


@dataclasses.dataclass
class SweepRow(Row):
    """A row of a sweep: which size was doubled how often, and the exponents of the whole sweep."""

    axis: str = ""
    doublings: int = 0
    time_exponent: float = math.nan
    memory_exponent: float = math.nan


@dataclasses.dataclass
class SweepTask:
    """One size of a layer, doubled until an implementation runs out of memory or a step of it takes too long."""

    axis: str
    cases: list[Case]
    dtype: str
    device: str

    @property
    def name(self) -> str:
        return f"{self.cases[0].algorithm}, {self.axis} doubled, {self.dtype}"

    @property
    def cost(self) -> int:
        return 1

    def prepare(self) -> None:
        """Kernels of the larger sizes are those of the smaller ones, as a rule."""
        for case in self.cases[:4]:
            CaseTask(case, self.dtype, self.device, compiled=False).prepare()

    def measure(self) -> Iterator[SweepRow]:
        going = dict.fromkeys(implementations(self.cases[0], compiled=False, textbook=True))
        for place, case in enumerate(self.cases):
            found = implementations(case, compiled=False, textbook=True)
            routes = {name: found[name] for name in going}
            for row in measure_case(case, DTYPES[self.dtype], self.device, routes, quick=True):
                yield SweepRow(**dataclasses.asdict(row), axis=self.axis, doublings=place)
                if row.note or _time(row) > LONGEST[self.device]:
                    del going[row.implementation]


def tasks_of(suite: str, options: Options) -> list[Task]:
    """What a suite measures, in order: the tasks whose names hold one of the wanted texts."""
    wanted = options.only.split("|")
    return [task for task in _all_tasks(suite, options) if any(text in task.name for text in wanted)]


def _all_tasks(suite: str, options: Options) -> list[Task]:
    device = options.device
    if suite == "models":
        return [ModelTask(*way, device) for way in ways(device, options.compiled)]
    if suite == "folded":
        return [FoldedTask(dtype, device) for dtype in options.dtypes]
    if suite == "sweeps":
        return [
            SweepTask(axis, cases, options.dtypes[0], device)
            for algorithm in SWEPT
            for axis, cases in sweeps(algorithm, DOUBLINGS[device]).items()
        ]
    # The textbook form of the large cases fills half of a large chip as it is; compiled, it is left out.
    return [
        CaseTask(case, dtype, device, options.compiled and suite != "large")
        for case in CASES[suite]
        for dtype in case.dtypes
        if dtype in options.dtypes
    ]


def run_suites(limits: dict[str, float], options: Options) -> None:
    """Measure suites, each for at most so many seconds, say each result, and write <out>/<suite>-<device>.csv.

    A file is written anew after every row: what was measured is kept, whatever happens next.
    """
    allow_tf32()
    about = ", ".join(f"{name} {version}" for name, version in versions().items())
    options.say(f"{', '.join(limits)} on {hardware(options.device)}: {about}")
    if "grid" in limits:  # which has processes of its own
        run_grid(_path("grid", options), options.device, options.jobs, limits["grid"], options.say, options.only)
    limits = {suite: limit for suite, limit in limits.items() if suite != "grid"}
    tasks = {suite: tasks_of(suite, options) for suite in limits}
    everything = [task for found in tasks.values() for task in found]
    free = options.after.exists if options.after else lambda: False
    with Workers(everything, options.jobs, options.prepare_limit, options.say, free) as workers:
        while options.after and not options.after.exists():
            time.sleep(0.1)
        for suite, limit in limits.items():
            rows: list[Any] = []
            for row in _within(limit, suite, tasks[suite], workers, options.say):
                rows.append(row)
                write_csv(as_dicts(rows, options.device), _path(suite, options))
                options.say(_line(row))
            if rows:
                _finish(suite, rows, options)


def _within(limit: float, suite: str, tasks: list[Task], workers: Workers, say: Say) -> Iterator[Any]:
    """Rows of the tasks that begin before the time is over."""
    end = time.monotonic() + limit
    for task in tasks:
        if time.monotonic() > end:
            say(f"{suite}: stopped after {limit:.0f} s, before {task.name}")
            return
        yield from workers.measure(task)


def _path(suite: str, options: Options) -> Path:
    return options.out / f"{suite}-{options.device}.csv"


def _finish(suite: str, rows: list[Any], options: Options) -> None:
    """The exponents of sweeps; a table and a plot of cases."""
    path = _path(suite, options)
    if suite == "sweeps":
        write_csv(as_dicts(_fitted(rows, options.say), options.device), path)
    if suite in CASES:
        options.say(table(rows))
        if importlib.util.find_spec("matplotlib"):
            draw(rows, path.with_suffix(".png"))
    options.say(f"written: {path}")


def _fitted(rows: list[SweepRow], say: Say) -> list[SweepRow]:
    """The rows with the exponents of their sweep, fitted on the larger half of the sizes."""
    for key in dict.fromkeys((row.algorithm, row.axis, row.implementation) for row in rows):
        sweep = [row for row in rows if (row.algorithm, row.axis, row.implementation) == key]
        sizes = [2.0**row.doublings for row in sweep]
        upper = slice(len(sweep) // 2, None)
        times, memory = [_time(row) for row in sweep], [row.peak_mib for row in sweep]
        fits = exponent(sizes[upper], times[upper]), exponent(sizes[upper], memory[upper])
        say(
            f"{' '.join(key)}: time ~ size^{fits[0]:.2f}, memory ~ size^{fits[1]:.2f} "
            f"({times[0]:.2f} to {times[-1]:.2f} ms)"
        )
        for row in sweep:
            row.time_exponent, row.memory_exponent = fits
    return rows


def _time(row: Row) -> float:
    return row.step_ms if math.isnan(row.graph_step_ms) else row.graph_step_ms


def _line(row: Any) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in dataclasses.asdict(row).items() if _told(key, value))


def _told(key: str, value: object) -> bool:
    missing = value == "" or (isinstance(value, float) and math.isnan(value))
    return not missing and key not in ("source", "algorithm", "children", "parents", "pose", "iterations")


def _short(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value
