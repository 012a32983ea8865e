"""How time and memory grow: one size doubled at a time from a small layer, and the exponent that fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from benchmarks.layers import LayerTask
from capsroute.bench.cases import Case
from capsroute.bench.measure import DTYPES, Row, implementations, measure_case

SWEPT = ("dynamic", "heinsen", "inverted_attention", "em", "max_min")
DOUBLINGS = {"cpu": 5, "cuda": 16}
LONGEST = {"cpu": 1000.0, "cuda": 50.0}  # milliseconds of a step; a sweep does not go on beyond it
AXES = ("children", "parents", "pose", "batch", "iterations")


def sweep(base: Case, axis: str, doublings: int) -> Iterator[Case]:
    """The base case with one size doubled again and again; `pose` doubles k and o together."""
    names = {"pose": ("k", "o")}.get(axis, (axis,))
    for power in range(doublings + 1):
        yield dataclasses.replace(base, **{name: getattr(base, name) * 2**power for name in names})


def sweeps(algorithm: str, doublings: int = 5) -> dict[str, list[Case]]:
    """A sweep of every axis of one algorithm; iterations stop at 16, and poses early: transforms grow squared."""
    gaussian = algorithm in ("em", "heinsen")
    rows, k, o = (4, 4, 4) if gaussian or algorithm == "inverted_attention" else (1, 8, 16)
    base = Case(algorithm, "sweep", 16, 256, 8, rows, k, o, iterations=2, shared=algorithm == "heinsen")
    found = {axis: list(sweep(base, axis, doublings)) for axis in AXES}
    return found | {"iterations": found["iterations"][:4], "pose": found["pose"][:5]}


def sweep_tasks(dtype: str, device: str) -> list[SweepTask]:
    """Every axis of every algorithm that is swept."""
    found = ((axis, cases) for algorithm in SWEPT for axis, cases in sweeps(algorithm, DOUBLINGS[device]).items())
    return [SweepTask(axis, cases, dtype, device) for axis, cases in found]


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) against log(size), by least squares: 1 is linear."""
    points = [(math.log(x), math.log(y)) for x, y in zip(sizes, values) if x > 0 and y > 0 and math.isfinite(y)]
    return float(np.polyfit(*zip(*points), 1)[0]) if len(points) > 1 else math.nan


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
            LayerTask(case, self.dtype, self.device, compiled=False).prepare()

    def measure(self) -> Iterator[SweepRow]:
        going = dict.fromkeys(implementations(self.cases[0], compiled=False))
        for place, case in enumerate(self.cases):
            found = implementations(case, compiled=False)
            routes = {name: found[name] for name in going}
            for row in measure_case(case, DTYPES[self.dtype], self.device, routes, quick=True):
                yield SweepRow(**dataclasses.asdict(row), axis=self.axis, doublings=place)
                if row.note or _time(row) > LONGEST[self.device]:
                    del going[row.implementation]


def fitted(rows: list[SweepRow], say: Callable[[str], None]) -> list[SweepRow]:
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
