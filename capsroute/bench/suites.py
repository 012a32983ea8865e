"""Suites of layers: which cases each measures, and how its rows are kept."""

from __future__ import annotations

import dataclasses
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capsroute.bench.cases import CONV_CASES, LARGE_CASES, PAPER_CASES, SIZE_CASES, SMALL_CASES, Case
from capsroute.bench.grid import run_grid
from capsroute.bench.report import draw, table, write_csv
from capsroute.bench.run import DTYPES, allow_tf32, as_dicts, hardware, implementations, measure_case, versions

CASES = {
    "paper": PAPER_CASES, "small": SMALL_CASES, "large": LARGE_CASES, "conv": CONV_CASES, "sizes": SIZE_CASES,
}  # fmt: skip
SUITES = (*CASES, "grid")
Say = Callable[[str], None]


def run_suite(
    suite: str, device: str, dtypes: Sequence[str], out: Path, compiled: bool = True, only: str = "", jobs: int = 0,
    say: Say = print,
) -> None:  # fmt: skip
    """Measure a suite here, say each result, and write <out>/<suite>-<device>.csv; a grid takes `jobs` processes."""
    allow_tf32()
    say(f"{suite} on {machine(device)}")
    path = out / f"{suite}-{device}.csv"
    if suite == "grid":
        run_grid(path, device, jobs, math.inf, say, only)
        return
    rows = (
        row
        for case, dtype in layers(suite, dtypes)
        if any(text in f"{case.name}, {dtype}" for text in only.split("|"))
        for row in measure_case(case, DTYPES[dtype], device, implementations(case, compiled and compiled_too(suite)))
    )
    finish(keep(rows, path, device, say), path, say)


def layers(suite: str, dtypes: Sequence[str]) -> Iterator[tuple[Case, str]]:
    """The cases of a suite, each in the wanted dtypes that it has."""
    return ((case, dtype) for case in CASES[suite] for dtype in case.dtypes if dtype in dtypes)


def compiled_too(suite: str) -> bool:
    """The textbook form of the large cases fills half of a large chip as it is; compiled, it is left out."""
    return suite != "large"


def keep(rows: Iterable[Any], path: Path, device: str, say: Say) -> list[Any]:
    """The rows, each said and written as it comes: a file is whole after every row, whatever happens next."""
    kept: list[Any] = []
    for row in rows:
        kept.append(row)
        write_csv(as_dicts(kept, device), path)
        say(_line(row))
    return kept


def finish(rows: Sequence[Any], path: Path, say: Say) -> None:
    """A table and a plot of cases."""
    if rows:
        say(table(rows))
        if importlib.util.find_spec("matplotlib"):
            draw(rows, path.with_suffix(".png"))
        say(f"written: {path}")


def machine(device: str) -> str:
    """The chip and the versions, in a line."""
    return f"{hardware(device)}: {', '.join(f'{name} {version}' for name, version in versions().items())}"


def _line(row: Any) -> str:
    return ", ".join(f"{key} {_short(value)}" for key, value in dataclasses.asdict(row).items() if _told(key, value))


def _told(key: str, value: object) -> bool:
    missing = value == "" or (isinstance(value, float) and math.isnan(value))
    return not missing and key not in ("source", "algorithm", "children", "parents", "pose", "iterations")


def _short(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value
