"""Prints a Markdown table of every row that two folders of CSV files share: before, after, and how many times as fast.

PYTHONPATH=. python3 benchmarks/before_after.py results/bench/before results/bench  for docs/speed.md
PYTHONPATH=. python3 benchmarks/before_after.py results/bench NEW_FOLDER paper sizes        only these suites
PYTHONPATH=. python3 benchmarks/before_after.py results/bench NEW_FOLDER small --textbook   on another machine

Ours alone: the textbook form is not what changed. Forward and backward, as a CUDA graph where that was measured. With
--textbook: how many times the textbook form's speed, which was measured in the same minute, ours had each time.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

# What names a row of each kind of file.
LAYER, MODEL, FOLDED = ("case", "dtype"), ("model", "changed", "batch", "precision", "compiled"), ("batch", "dtype")
SWEPT = "case", "dtype", "axis", "iterations"  # one case is in several sweeps
TIMES = ("graph_step_ms", "step_ms"), ("graph_folded_ms", "folded_ms")


def before_after(before: Path, after: Path, suites: Sequence[str] = ()) -> str:
    """The table, one line for each row that both folders have, and under it how many became slower by over 5 %."""
    lines = ["| | before, ms | after, ms | times as fast | before, MiB | after, MiB |", "|---|---|---|---|---|---|"]
    found = [row for path in _files(before, after, suites) for row in _rows(path, after / path.name)]
    for name, (old_ms, new_ms), (old_mib, new_mib) in found:
        lines.append(
            f"| {name} | {old_ms:.3g} | {new_ms:.3g} | {old_ms / new_ms:.2f} | {_mib(old_mib)} | {_mib(new_mib)} |"
        )
    slower = [name for name, (old, new), _ in found if new > 1.05 * old]
    lines.append(
        f"\n{len(found)} rows, {len(slower)} slower by more than 5 %{': ' if slower else ''}{'; '.join(slower)}."
    )
    return "\n".join(lines)


def against_textbook(before: Path, after: Path, suites: Sequence[str] = ()) -> str:
    """Times the speed of the textbook form, before and after: where the machine was not the same, or not alone."""
    lines = ["| | times the textbook form's speed, before | after |", "|---|---|---|"]
    for path in _files(before, after, suites):
        old, new = (
            {name: _read(folder / path.name, name) for name in ("capsroute", "textbook")} for folder in (before, after)
        )
        for key in old["capsroute"]:
            if all(key in rows for rows in (*old.values(), *new.values())):
                was, now = (_speed(each["textbook"][key], each["capsroute"][key]) for each in (old, new))
                lines.append(f"| {', '.join(key)} | {was:.2f} | {now:.2f} |")
    return "\n".join(lines)


def _files(before: Path, after: Path, suites: Sequence[str]) -> list[Path]:
    wanted = [path for path in sorted(before.glob("*-c*.csv")) if (after / path.name).exists()]
    wanted = [path for path in wanted if not suites or path.stem.rsplit("-", 1)[0] in suites]
    if not wanted:
        raise SystemExit(f"no file of {before} is in {after}, too")
    return wanted


def _rows(before: Path, after: Path) -> Iterator[tuple[str, tuple[float, float], tuple[float, float]]]:
    """Name, milliseconds and mebibytes of what was measured both times."""
    old, new = _read(before), _read(after)
    for key in old:
        if key in new:
            times = [(_number(old[key], field), _number(new[key], field)) for pair in TIMES for field in pair]
            both = next((pair for pair in times if all(map(math.isfinite, pair))), None)
            if both:
                memory = _number(old[key], "peak_mib"), _number(new[key], "peak_mib")
                yield ", ".join(text for text in key if text not in ("", "False")), both, memory


def _read(path: Path, whose: str = "capsroute") -> dict[tuple[str, ...], dict[str, str]]:
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get("implementation", "capsroute") == whose]
    keys = next((fields for fields in (SWEPT, LAYER, MODEL, FOLDED) if rows and set(fields) <= set(rows[0])), ())
    device = path.stem.rsplit("-", 1)[1]
    prefix = ("folded",) if keys == FOLDED else ()
    compiled = {"True": "compiled"}
    return {(*prefix, *(compiled.get(row[field], row[field]) for field in keys), device): row for row in rows if keys}


def _speed(textbook: dict[str, str], ours: dict[str, str]) -> float:
    return _number(textbook, "step_ms") / _number(ours, "step_ms")


def _number(row: dict[str, str], field: str) -> float:
    return float(row.get(field) or math.nan)


def _mib(value: float) -> str:
    return f"{value:.0f}" if math.isfinite(value) else "-"


if __name__ == "__main__":
    compare = against_textbook if "--textbook" in sys.argv else before_after
    print(compare(Path(sys.argv[1]), Path(sys.argv[2]), [suite for suite in sys.argv[3:] if suite != "--textbook"]))
