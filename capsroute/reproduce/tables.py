"""Tables made of evidence: one per paper, a row per published number, every figure from a committed run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from capsroute.data.files import write_atomically
from capsroute.reproduce.evidence import Evidence, collect
from capsroute.reproduce.rows import PAPERS, Row, load_rows

__all__ = ["render", "write_tables"]

COLUMNS = (
    "row",
    "published",
    "ours (mean ± spread, n)",
    "uniform coefficients",
    "goal",
    "parameters",
    "time to train",
    "hardware",
    "command",
    "notes",
)
HEADER = "| " + " | ".join(COLUMNS) + " |"
RULE = "|" + "---|" * len(COLUMNS)


def render(rows: Sequence[Row], evidence: dict[str, list[Evidence]]) -> str:
    """The tables as Markdown. A row without runs says so; spread is the sample standard deviation.

    >>> from capsroute.reproduce import Row, render
    >>> print(render([Row("zhao", "MNIST", "zhao-mnist", published=99.55)], {}).splitlines()[-1])
    | MNIST | 99.55 | not run | - | - | - | - | - | `capsroute reproduce zhao --row zhao-mnist` |  |
    """
    parts = []
    for paper, title in PAPERS.items():
        lines = [_line(row, evidence.get(row.recipe, [])) for row in rows if row.paper == paper]
        if lines:
            parts.append("\n".join([f"## {title}", "", HEADER, RULE, *lines]))
    return "\n\n".join(parts) + "\n"


def write_tables(results: str | Path) -> Path:
    """Re-make `README.md` of a results folder from its `rows.toml`, its `PREFACE.md` and its committed runs."""
    results = Path(results)
    preface = (results / "PREFACE.md").read_text(encoding="utf-8")
    text = preface.rstrip() + "\n\n" + render(load_rows(results / "rows.toml"), collect(results))
    write_atomically(results / "README.md", text.encode())
    return results / "README.md"


def _line(row: Row, runs: list[Evidence]) -> str:
    measured = [run for run in runs if row.routing in run.accuracy.get(row.test, {})]
    values = [run.accuracy[row.test] for run in measured]
    ours = [value[row.routing] for value in values]
    verdict = "-" if row.goal is None else f"≥ {row.goal:g}"
    if row.goal is not None and ours:
        verdict += ", reached" if statistics.fmean(ours) >= row.goal - 1e-9 else ", **not reached**"
    cells = [
        row.name,
        "-" if row.published is None else f"{row.published:g}",
        _spread(ours) or "not run",
        _spread([value["uniform"] for value in values if "uniform" in value]) or "-",
        verdict,
        f"{measured[0].parameters:,}" if measured else "-",
        _duration(statistics.fmean(run.seconds for run in measured)) if measured else "-",
        ", ".join(sorted({run.hardware for run in measured})) or "-",
        f"`{row.command}`",
        row.note,
    ]
    return "| " + " | ".join(cells) + " |"


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} (n={len(values)})"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
