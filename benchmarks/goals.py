"""Writes <folder>/README.md, every goal of the kernels beside what the CSV files in the folder hold, and plots.

What else a reader must know of the files stands in <folder>/notes.md, which becomes a part of it.

PYTHONPATH=. python3 benchmarks/goals.py results/bench
"""

from __future__ import annotations

import csv
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from capsroute.bench.measure import Row, read_rows
from capsroute.bench.suites import draw

Rows = list[dict[str, str]]
LOOP = "1152x8 -> 10x16"


class Verdict(NamedTuple):
    """One goal: what, how much, and what was measured (NaN: it was not)."""

    what: str
    goal: str
    measured: float
    unit: str
    reached: bool

    @property
    def word(self) -> str:
        return "not measured" if math.isnan(self.measured) else "reached" if self.reached else "**not reached**"


def judge(folder: Path) -> Iterator[Verdict]:
    """Every goal, in order, from the CSV files of a folder; one that is not there has no rows."""
    paper, models = _read(folder / "paper-cuda.csv"), _read(folder / "models-cuda.csv")
    yield from _loops(paper)
    heinsen = "heinsen 5184x4x4 -> 64x4, shared, batch 20"
    ours = _one(paper, case=heinsen, implementation="capsroute")
    yield _at_most(f"{heinsen}: forward + backward", _number(ours, "graph_step_ms"), 2.2, "ms")
    yield _at_most(f"{heinsen}: memory", _number(ours, "peak_mib"), 250, "MiB")
    yield from _steps(models)
    large = "dynamic 512x16 -> 30000x16, shared, batch 8"
    found = _number(_one(_read(folder / "large-cuda.csv"), case=large, implementation="capsroute"), "peak_mib")
    yield _at_most(f"{large}: memory", found, 6 * 1024, "MiB")
    photograph = [row for row in models if row["changed"] == "image_size=224"]
    found = min((_number(row, "step_ms") for row in photograph), default=math.nan)
    yield Verdict("224 x 224 through convolutional capsules, batch 32: a training step", "runs", found, "ms", found > 0)
    for row in _read(folder / "folded-cuda.csv"):
        what = f"folded fast routing, batch {row['batch']}, {row['dtype']}: against a linear layer and squash"
        yield _at_most(what, _number(row, "graph_ratio"), 1.05, "x")
    yield from _on_cpu(_read(folder / "small-cpu.csv"))


def _loops(rows: Rows) -> Iterator[Verdict]:
    """Dynamic and max-min routing: a CUDA graph against the compiled textbook form, memory, and plain calls."""
    for algorithm in ("dynamic", "max_min"):
        for batch, graph, memory in ((512, 10, 12), (128, 7, 10)):
            for dtype in ("float32", "bfloat16"):
                case = f"{algorithm} {LOOP}, batch {batch}"
                ours, eager, compiled = (
                    _one(rows, case=case, dtype=dtype, implementation=name)
                    for name in ("capsroute", "textbook", "textbook compiled")
                )
                name = f"{case}, {'tf32' if dtype == 'float32' else dtype}"
                ratio = _number(compiled, "graph_step_ms") / _number(ours, "graph_step_ms")
                yield _at_least(f"{name}: faster than compiled, in graphs", ratio, graph)
                ratio = _number(compiled, "peak_mib") / _number(ours, "peak_mib")
                yield _at_least(f"{name}: less memory than compiled", ratio, memory)
                ratio = _number(eager, "step_ms") / _number(ours, "step_ms")
                yield _at_least(f"{name}: plain calls faster than eager", ratio, 4)


def _steps(rows: Rows) -> Iterator[Verdict]:
    """Training steps of whole models: the fastest way to run each that stays within the memory, if there is one."""
    for model, time, memory in (("tsai_resnet_cifar10", 6.0, 1024), ("capsnet", 3.0, 400)):
        ways = [row for row in rows if row["model"] == model and _number(row, "graph_step_ms") > 0]
        within = [row for row in ways if _number(row, "peak_mib") <= memory]
        best = min(within or ways, key=lambda row: _number(row, "graph_step_ms"), default=None)
        how = "" if best is None else f" ({best['precision']}{', compiled' if best['compiled'] == 'True' else ''})"
        yield _at_most(f"{model} training step{how}", _number(best, "graph_step_ms"), time, "ms")
        yield _at_most(f"{model} training step{how}: memory", _number(best, "peak_mib"), memory, "MiB")


def _on_cpu(rows: Rows) -> Iterator[Verdict]:
    for ours in rows:
        if ours["implementation"] == "capsroute":
            textbook = _one(rows, case=ours["case"], implementation="textbook")
            ratio = _number(textbook, "step_ms") / _number(ours, "step_ms")
            large = ours["case"].startswith("heinsen 5184")
            yield _at_least(f"CPU, {ours['case']}: faster than eager", ratio, 20 if large else 1)


def _read(path: Path) -> Rows:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _one(rows: Rows, **wanted: str) -> dict[str, str] | None:
    return next((row for row in rows if all(row[key] == value for key, value in wanted.items())), None)


def _number(row: dict[str, str] | None, field: str) -> float:
    return float(row[field] or math.nan) if row else math.nan


def _at_least(what: str, measured: float, least: float) -> Verdict:
    return Verdict(what, f">= {least:g}x", measured, "x", measured >= least)


def _at_most(what: str, measured: float, most: float, unit: str) -> Verdict:
    return Verdict(what, f"<= {most:g} {unit}".replace(" x", "x"), measured, unit, measured <= most)


def page(folder: Path) -> str:
    """The goals as a Markdown table."""
    lines = ["| what | goal | measured | |", "|---|---|---|---|"]
    for verdict in judge(folder):
        digits = ".0f" if verdict.measured >= 100 else ".3g"
        measured = f"{verdict.measured:{digits}} {verdict.unit}".replace(" x", "x").replace("nan", "-")
        lines.append(f"| {verdict.what} | {verdict.goal} | {measured} | {verdict.word} |")
    return "\n".join(lines)


def slower(folder: Path) -> list[str]:
    """Where the textbook form, or a linear layer, is faster than ours: a line each."""
    rows, lines = [row for suite in ("paper", "conv", "large") for row in _read(folder / f"{suite}-cuda.csv")], []
    names = {"step_ms": "as plain calls", "graph_step_ms": "in graphs"}
    for ours in rows:
        others = [row for row in rows if row["case"] == ours["case"] and row["dtype"] == ours["dtype"]]
        for field, how in names.items() if ours["implementation"] == "capsroute" else ():
            for row in others:
                if _number(row, field) < _number(ours, field):
                    times = f"{_number(ours, field):.3g} ms against {_number(row, field):.3g} ms"
                    lines.append(f"{ours['case']}, {ours['dtype']}, {how}: {times} ({row['implementation']})")
    for row in _read(folder / "folded-cuda.csv"):
        if _number(row, "ratio") > 1.05:
            times = f"{_number(row, 'folded_ms'):.3g} ms against {_number(row, 'linear_ms'):.3g} ms (linear layer)"
            lines.append(f"folded fast routing, batch {row['batch']}, {row['dtype']}, as plain calls: {times}")
    return lines


def growth(folder: Path) -> list[str]:
    """The exponents of every sweep that was measured, and which ended for want of memory: a line each."""
    lines: dict[tuple[str, ...], str] = {}
    for row in _read(folder / "sweeps-cuda.csv") + _read(folder / "sweeps-cpu.csv"):
        key = row["hardware"], row["algorithm"], row["axis"], row["implementation"]
        if row["note"] and key in lines:
            lines[key] += f"; doubled once more: {row['note']}"
            continue
        time, memory = (_number(row, f"{what}_exponent") for what in ("time", "memory"))
        held = "" if math.isnan(memory) else f", memory ~ size^{memory:.2f}"
        name = f"{row['algorithm']}, {row['axis']} doubled {row['doublings']} times, {row['implementation']}"
        lines[key] = f"{row['hardware']}: {name}: time ~ size^{time:.2f}{held}"
    return list(lines.values())


TEXT = """# Benchmarks

Written by `python benchmarks/goals.py results/bench` from the CSV files beside it; `capsroute bench` and
`benchmarks/run.py` write those. Ours and the textbook form ran in one process on the same tensors. Times are medians;
"in graphs" is the replay of a CUDA graph; memory is the peak beyond the inputs; every row of a CSV names the hardware
and the versions. `paper` holds the layers of the papers, `models` whole networks, `large` what papers call out of
reach, `conv` windows over maps, `folded` fast routing, `sweeps` how time and memory grow, `small` sizes for a CPU. On a
CPU implementations run in turns; where it says "CPU time", others used the machine and the thread's own clock was read.

{machines}

## Goals

{goals}

## Where others are faster

Layers of a few small operations spend their time on the host when they are called one by one; a CUDA graph or
torch.compile removes that. Forward and backward, in milliseconds:

{slower}

## Notes

{notes}

## Growth

One size doubled at a time, as often as a line says: at most until memory is full or a step takes 50 ms (GPU) or 1 s
(CPU). The exponent is fitted on the larger half of the sizes. What is missing was not run.

{growth}
"""


def machines(folder: Path) -> str:
    """Which file was measured on what."""
    lines = []
    for path in sorted(folder.glob("*-c*.csv")):
        with path.open(newline="") as file:
            row = next(csv.DictReader(file))
        about = ", ".join(f"{name} {row[name]}" for name in ("torch", "triton", "python"))
        lines.append(f"- `{path.name}`: {row['hardware']}, {about}")
    return "\n".join(lines)


def listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "Nothing was measured."


def main() -> None:
    folder = Path(sys.argv[1])
    aside = folder / "README.part"
    parts = {"machines": machines(folder), "slower": listed(slower(folder)), "growth": listed(growth(folder))}
    notes = folder / "notes.md"
    parts["notes"] = notes.read_text().strip() if notes.exists() else "None."
    aside.write_text(TEXT.format(goals=page(folder), **parts))
    os.replace(aside, folder / "README.md")
    for path in [path for suite in ("paper", "sizes", "small") for path in folder.glob(f"{suite}-*.csv")]:
        draw(read_rows(path, Row), path.with_suffix(".png"))


if __name__ == "__main__":
    main()
