"""Which rows a suite is made of, and where they are written."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from capsroute.bench.cases import LARGE_CASES, PAPER_CASES, SMALL_CASES, Case
from capsroute.bench.models import run_models
from capsroute.bench.report import draw, table, write_csv
from capsroute.bench.run import Row, allow_tf32, as_dicts, hardware, run_cases, versions, warm
from capsroute.bench.sweeps import AXES, exponent, sweeps

__all__ = ["SUITES", "run_suite"]

SUITES = ("paper", "small", "large", "sweeps", "models")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run_suite(
    suite: str, device: str, dtypes: list[str], out: Path, compiled: bool = True, jobs: int = 0,
    only: str = "", say: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Measure a suite, say each result as it comes, and write <out>/<suite>-<device>.csv (and .png)."""
    allow_tf32()
    say(f"{suite} on {hardware(device)}: " + ", ".join(f"{name} {version}" for name, version in versions().items()))
    path = out / f"{suite}-{device}.csv"
    kinds = [DTYPES[name] for name in dtypes]
    if suite == "models":
        _models(device, compiled, path, say, only)
    elif suite == "sweeps":
        _sweeps(device, kinds, path, say, only)
    else:
        cases = [case for case in _cases(suite) if only in case.name]
        if jobs and compiled and suite != "large":
            warm(cases, kinds, jobs)
        # The textbook form of the large cases is what does not fit.
        rows = list(_said(run_cases(cases, kinds, device, compiled, suite != "large"), say))
        write_csv(as_dicts(rows, device), path)
        if importlib.util.find_spec("matplotlib"):
            draw(rows, path.with_suffix(".png"))
        say(table(rows))
    say(f"written: {path}")


def _cases(suite: str) -> tuple[Case, ...]:
    return {"paper": PAPER_CASES, "small": SMALL_CASES, "large": LARGE_CASES}[suite]


def _said(rows: Iterator[Row], say: Callable[[str], None]) -> Iterator[Row]:
    for row in rows:
        say(f"{row.case}, {row.dtype}, {row.implementation}: {row.step_ms:.3f} ms {row.note}")
        yield row


def _models(device: str, compiled: bool, path: Path, say: Callable[[str], None], only: str) -> None:
    shared = {"hardware": hardware(device), **versions()}
    rows = []
    for row in run_models(device, compiled, only):
        rows.append({**dataclasses.asdict(row), **shared})
        say(", ".join(f"{key} {_short(value)}" for key, value in dataclasses.asdict(row).items()))
    write_csv(rows, path)


def _sweeps(device: str, dtypes: list[torch.dtype], path: Path, say: Callable[[str], None], only: str) -> None:
    rows = []
    for algorithm in ("dynamic", "max_min", "inverted_attention", "em", "heinsen"):
        for axis in AXES if only in algorithm else ():
            cases = sweeps(algorithm)[axis]
            found = list(run_cases(cases, dtypes[:1], device, compiled=False))
            for name in dict.fromkeys(row.implementation for row in found):
                rows += _fitted(axis, [row for row in found if row.implementation == name], device, say)
    write_csv(rows, path)


def _fitted(axis: str, rows: list[Row], device: str, say: Callable[[str], None]) -> list[dict]:
    """Rows of one sweep with the exponents of time and memory, fitted on the larger half of the sizes."""
    sizes = [2.0**place for place in range(len(rows))]
    upper = slice(len(rows) // 2, None)
    times, memory = [_time(row) for row in rows], [row.peak_mib for row in rows]
    fit = {"axis": axis, "time_exponent": exponent(sizes[upper], times[upper])}
    fit["memory_exponent"] = exponent(sizes[upper], memory[upper])
    say(
        f"{rows[0].algorithm} {axis} {rows[0].implementation}: time ~ size^{fit['time_exponent']:.2f}, "
        f"memory ~ size^{fit['memory_exponent']:.2f} ({times[0]:.2f} to {times[-1]:.2f} ms)"
    )
    return [{**row, **fit} for row in as_dicts(rows, device)]


def _time(row: Row) -> float:
    return row.graph_step_ms if row.graph_step_ms == row.graph_step_ms else row.step_ms


def _short(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value
