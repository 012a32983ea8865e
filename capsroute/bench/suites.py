"""Which rows a suite is made of, and where they are written."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capsroute.bench.cases import LARGE_CASES, PAPER_CASES, SMALL_CASES, Case
from capsroute.bench.folded import measure_folded
from capsroute.bench.models import measure_model, ways
from capsroute.bench.report import draw, table, write_csv
from capsroute.bench.run import DTYPES, Row, allow_tf32, as_dicts, hardware, measure_case, versions
from capsroute.bench.sweeps import AXES, exponent, sweeps
from capsroute.bench.warming import CaseTask, ModelTask, warm

__all__ = ["SUITES", "run_suite", "warm_suites"]

Say = Callable[[str], None]
CASES = {"paper": PAPER_CASES, "small": SMALL_CASES, "large": LARGE_CASES}
SUITES = (*CASES, "models", "folded", "sweeps")
SWEPT = ("dynamic", "heinsen", "inverted_attention", "em", "max_min")


@dataclasses.dataclass(frozen=True)
class Options:
    """What all suites are told: where, in which dtypes, whether to compile, for how long, which cases, whom to tell."""

    device: str
    dtypes: Sequence[str]
    out: Path
    compiled: bool = True
    limit: float = math.inf  # seconds; a row that was begun is finished
    only: str = ""
    say: Say = print


def run_suite(suite: str, options: Options) -> None:
    """Measure a suite, say each result, and write <out>/<suite>-<device>.csv (and .png) anew after every row."""
    allow_tf32()
    about = ", ".join(f"{name} {version}" for name, version in versions().items())
    options.say(f"{suite} on {hardware(options.device)}: {about}")
    path = options.out / f"{suite}-{options.device}.csv"
    rows: list[Any] = []
    began = time.monotonic()
    for row in _rows(suite, options):
        rows.append(row)
        write_csv(as_dicts(rows, options.device), path)
        options.say(_line(row))
        if time.monotonic() - began > options.limit:
            options.say(f"{suite}: stopped after {options.limit:.0f} s")
            break
    if suite == "sweeps":
        write_csv(as_dicts(_fitted(rows, options.say), options.device), path)
    if suite in CASES and rows:
        options.say(table(rows))
        if importlib.util.find_spec("matplotlib"):
            draw(rows, path.with_suffix(".png"))
    options.say(f"written: {path}")


def _rows(suite: str, options: Options) -> Iterator[Any]:
    if suite == "models":
        for subject, half, compiled in ways(options.device, options.compiled, options.only):
            yield measure_model(subject, half, compiled, options.device)
    elif suite == "folded":
        yield from measure_folded(options.device, [DTYPES[name] for name in options.dtypes])
    elif suite == "sweeps":
        yield from _swept(options)
    else:
        for case, dtype in _cases(suite, options):
            # The textbook form of the large cases is what does not fit.
            yield from measure_case(case, DTYPES[dtype], options.device, options.compiled, suite != "large")


def _cases(suite: str, options: Options) -> list[tuple[Case, str]]:
    cases = [case for case in CASES[suite] if options.only in case.name]
    return [(case, dtype) for case in cases for dtype in case.dtypes if dtype in options.dtypes]


@dataclasses.dataclass
class SweepRow(Row):
    """A row of a sweep: which size was doubled how often, and the exponents of the whole sweep."""

    axis: str = ""
    doublings: int = 0
    time_exponent: float = math.nan
    memory_exponent: float = math.nan


def _swept(options: Options) -> Iterator[SweepRow]:
    for algorithm in SWEPT:
        for axis in AXES if options.only in algorithm else ():
            for place, case in enumerate(sweeps(algorithm)[axis]):
                for row in measure_case(case, DTYPES[options.dtypes[0]], options.device, compiled=False, quick=True):
                    yield SweepRow(**dataclasses.asdict(row), axis=axis, doublings=place)


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


def _warmed(axis: str) -> bool:
    """Whether kernels are compiled anew for another size along this axis."""
    return axis in ("parents", "pose", "iterations")


def warm_suites(suites: Sequence[str], options: Options, jobs: int, limit: float) -> None:
    """Compile what these suites need in that many processes, for at most `limit` seconds."""
    tasks: list[CaseTask | ModelTask] = []
    if "models" in suites:
        tasks += [
            ModelTask(*way) for way in sorted(ways("cuda", options.compiled, options.only), key=lambda w: not w[2])
        ]
    names = ("capsroute", "textbook compiled") if options.compiled else ("capsroute",)
    for suite in suites:
        if suite in CASES:
            for case, dtype in _cases(suite, options):
                tasks += [CaseTask(case, dtype, name) for name in (names if suite != "large" else names[:1])]
    if "sweeps" in suites:
        swept = dict.fromkeys(case for name in SWEPT for axis in AXES for case in sweeps(name)[axis] if _warmed(axis))
        tasks += [CaseTask(case, options.dtypes[0], "capsroute") for case in swept if options.only in case.algorithm]
    for line in warm(tasks, jobs, limit):
        options.say(f"warmed: {line}")
