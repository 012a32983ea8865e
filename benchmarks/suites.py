"""All that is measured here: the layers of `capsroute bench`, whole models, folded routing and sweeps.

With processes that compile first, and a limit of seconds for each suite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.folded import FoldedTask
from benchmarks.layers import LayerTask
from benchmarks.sweeps import fitted, sweep_tasks
from benchmarks.whole_models import ModelTask, ways
from benchmarks.workers import Task, Workers
from capsroute.bench.grid import run_grid
from capsroute.bench.measure import allow_tf32, as_dicts
from capsroute.bench.suites import CASES, compiled_too, finish, keep, layers, machine, write_csv

SUITES = (*CASES, "models", "folded", "sweeps", "grid")
Say = Callable[[str], None]


@dataclass(frozen=True)
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

    def path(self, suite: str) -> Path:
        return self.out / f"{suite}-{self.device}.csv"


def tasks_of(suite: str, options: Options) -> list[Task]:
    """What a suite measures, in order: the tasks whose names hold one of the wanted texts."""
    wanted = options.only.split("|")
    return [task for task in _all_tasks(suite, options) if any(text in task.name for text in wanted)]


def _all_tasks(suite: str, options: Options) -> Sequence[Task]:
    device, compiled = options.device, options.compiled
    if suite == "models":
        return [ModelTask(*way, device) for way in ways(device, compiled)]
    if suite == "folded":
        return [FoldedTask(dtype, device) for dtype in options.dtypes]
    if suite == "sweeps":
        return sweep_tasks(options.dtypes[0], device)
    compiled = compiled and compiled_too(suite)
    return [LayerTask(case, dtype, device, compiled) for case, dtype in layers(suite, options.dtypes)]


def run_suites(limits: dict[str, float], options: Options) -> None:
    """Measure suites, each for at most so many seconds, say each result, and write <out>/<suite>-<device>.csv."""
    allow_tf32()
    device, say = options.device, options.say
    say(f"{', '.join(limits)} on {machine(device)}")
    if "grid" in limits:  # which has processes of its own
        run_grid(options.path("grid"), device, options.jobs, limits["grid"], say, options.only)
    limits = {suite: limit for suite, limit in limits.items() if suite != "grid"}
    tasks = {suite: tasks_of(suite, options) for suite in limits}
    everything = [task for found in tasks.values() for task in found]
    free = options.after.exists if options.after else lambda: False
    with Workers(everything, options.jobs, options.prepare_limit, say, free) as workers:
        while options.after and not options.after.exists():
            time.sleep(0.1)
        for suite, limit in limits.items():
            path = options.path(suite)
            rows = keep(_within(limit, suite, tasks[suite], workers, say), path, device, say)
            if suite == "sweeps" and rows:
                write_csv(as_dicts(fitted(rows, say), device), path)
            if suite in CASES:
                finish(rows, path, say)


def _within(limit: float, suite: str, tasks: list[Task], workers: Workers, say: Say) -> Iterator[Any]:
    """Rows of the tasks that begin before the time is over."""
    end = time.monotonic() + limit
    for task in tasks:
        if time.monotonic() > end:
            say(f"{suite}: stopped after {limit:.0f} s, before {task.name}")
            return
        yield from workers.measure(task)
