"""Suites of layers: which cases each measures, and their rows as a table to read, a CSV to keep, a plot to look at."""

import csv
import dataclasses
import importlib.util
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from capsroute.bench.cases import CONV_CASES, LARGE_CASES, PAPER_CASES, SIZE_CASES, SMALL_CASES, Case
from capsroute.bench.grid import run_grid
from capsroute.bench.measure import (
    DTYPES,
    Row,
    allow_tf32,
    as_dicts,
    as_text,
    hardware,
    implementations,
    measure_case,
    versions,
)
from capsroute.files import write_atomically

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
    """What was measured, in a line; the name of the case says its sizes."""
    sizes = ("source", "algorithm", "children", "parents", "pose", "iterations")
    told = {key: f"{v:.3g}" if isinstance(v, float) else v for key, v in dataclasses.asdict(row).items()}
    return ", ".join(f"{key} {v}" for key, v in told.items() if key not in sizes and v not in ("", "nan"))


COLUMNS = {
    "case": "case", "dtype": "dtype", "implementation": "implementation", "forward_ms": "forward", "step_ms": "f+b",
    "graph_step_ms": "f+b graph", "peak_mib": "MiB", "error_poses": "error", "error_gradients": "error of gradients",
}  # fmt: skip


def table(rows: Iterable[Row]) -> str:
    """Rows as aligned text; times in milliseconds, and under each textbook row how many times slower it is."""
    lines = [list(COLUMNS.values())]
    ours: Row | None = None
    for row in rows:
        ours = row if row.implementation == "capsroute" else ours
        cells = [_text(name, getattr(row, name)) for name in COLUMNS]
        if ours is not None and row is not ours and ours.case == row.case:
            for name in ("forward_ms", "step_ms", "graph_step_ms", "peak_mib"):
                ratio = getattr(row, name) / getattr(ours, name) if getattr(ours, name) else math.nan
                cells[list(COLUMNS).index(name)] += f" ({ratio:.1f}x)" if math.isfinite(ratio) else ""
        lines.append([*cells[:-1], cells[-1] + (f"  {row.note}" if row.note else "")])
    widths = [max(len(line[place]) for line in lines) for place in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines)


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        return "-"
    return f"{value:.1e}" if name.startswith("error") else f"{value:.0f}" if name == "peak_mib" else f"{value:.3f}"


def write_csv(rows: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> None:
    """Rows to a CSV file, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(map(as_text, rows))
    write_atomically(path, text.getvalue().encode())


def draw(rows: Sequence[Row], path: str | os.PathLike[str]) -> None:
    """Bars of time (forward and backward) and memory of each case, ours beside the textbook form; needs matplotlib."""
    from matplotlib.figure import Figure

    panels = {"step_ms": "forward + backward, ms", "peak_mib": "peak memory beyond the inputs, MiB"}
    panels = {field: label for field, label in panels.items() if any(_best(row, field) > 0 for row in rows)}
    cases = list(dict.fromkeys((row.case, row.dtype) for row in rows))
    names = list(dict.fromkeys(row.implementation for row in rows))
    size = (2.5 + 4.5 * len(panels), 1 + 0.25 * len(cases) * len(names))
    figure = Figure(figsize=size)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axis, (field, label) in zip(axes[0], panels.items()):
        for place, name in enumerate(names):
            values = {(r.case, r.dtype): _best(r, field) for r in rows if r.implementation == name}
            where = [index + 0.8 * (place + 0.5) / len(names) - 0.4 for index in range(len(cases))]
            bars = axis.barh(where, [values.get(case, math.nan) for case in cases], 0.8 / len(names), label=name)
            axis.bar_label(bars, fmt=lambda v: f"{v:,.0f}" if v >= 100 else f"{v:.3g}", fontsize=6, padding=2)
        axis.set_xscale("log")
        axis.margins(x=0.15, y=0.01)
        axis.set_xlabel(label)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_yticks(range(len(cases)), [f"{case}, {dtype}" for case, dtype in cases], fontsize=7)
    axes[0][0].invert_yaxis()
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="upper center", ncols=len(names), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / size[1]))
    figure.savefig(path, dpi=120)


def _best(row: Row, field: str) -> float:
    """The time of a CUDA graph where there is one: what the chip does, not the host."""
    return row.graph_step_ms if field == "step_ms" and math.isfinite(row.graph_step_ms) else getattr(row, field)
