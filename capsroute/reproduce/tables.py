"""Tables made of evidence: one per paper, a row per published number, every figure from a committed run."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from capsroute.reproduce.evidence import Evidence
from capsroute.reproduce.rows import PAPERS, Row

__all__ = ["render", "render_main"]

Runs = dict[str, list[Evidence]]
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
MAIN_COLUMNS = (
    "row",
    "published",
    "ours (mean ± spread, n)",
    "same weights, uniform coefficients",
    "goal",
    "time to train",
)


def render(rows: Sequence[Row], evidence: Runs) -> str:
    """The tables as Markdown. A row without runs says so; spread is the sample standard deviation.

    >>> from capsroute.reproduce import Row, render
    >>> print(render([Row("zhao", "MNIST", "zhao-mnist", published=99.55)], {}).splitlines()[-1])
    | MNIST | 99.55 | not run | - | - | - | - | - | `capsroute reproduce zhao --row zhao-mnist` |  |
    """
    parts = []
    for paper, title in PAPERS.items():
        lines = [_line(row, evidence) for row in rows if row.paper == paper]
        if lines:
            parts.append("\n".join([f"## {title}", "", *_head(COLUMNS), *lines]))
    return "\n\n".join(parts) + "\n"


def render_main(rows: Sequence[Row], evidence: Runs) -> str:
    """One short table for the README of the repository: the rows marked `main` that have runs.

    >>> from capsroute.reproduce import Row
    >>> from capsroute.reproduce.tables import render_main
    >>> len(render_main([Row("zhao", "MNIST", "zhao-mnist", published=99.55, main=True)], {}).splitlines())
    2
    """
    lines = []
    for row in rows:
        if row.main and _measured(row.recipe, row, evidence):
            _, published, ours, uniform, goal, _, seconds, *_ = _cells(row, evidence)
            paper = PAPERS[row.paper].partition(",")[0]
            lines.append(_joined([f"{row.name} ({paper})", published, ours, uniform, goal, seconds]))
    return "\n".join([*_head(MAIN_COLUMNS), *lines]) + "\n"


def _head(columns: Sequence[str]) -> list[str]:
    return [_joined(columns), "|" + "---|" * len(columns)]


def _joined(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _line(row: Row, evidence: Runs) -> str:
    return _joined([*_cells(row, evidence), f"`{row.command}`", row.note])


def _cells(row: Row, evidence: Runs) -> list[str]:
    """From the row's name to the hardware."""
    runs = _measured(row.recipe, row, evidence)
    values = [run.accuracy[row.test] for run in runs]
    return [
        row.name,
        "-" if row.published is None else f"{row.published:g}",
        _spread([value[row.routing] for value in values]) or "not run",
        _spread([value["uniform"] for value in values if "uniform" in value]) or "-",
        _verdict(row, evidence),
        f"{runs[0].parameters:,}" if runs else "-",
        _duration(statistics.fmean(run.seconds for run in runs)) if runs else "-",
        ", ".join(sorted({run.hardware for run in runs})) or "-",
    ]


def _measured(recipe: str, row: Row, evidence: Runs) -> list[Evidence]:
    """The runs of a recipe that measured what the row is about."""
    return [run for run in evidence.get(recipe, []) if row.routing in run.accuracy.get(row.test, {})]


def _mean(recipe: str, row: Row, evidence: Runs, routing: str | None = None) -> float | None:
    values = [run.accuracy[row.test][routing or row.routing] for run in _measured(recipe, row, evidence)]
    return statistics.fmean(values) if values else None


def _verdict(row: Row, evidence: Runs) -> str:
    """What the row should reach, and whether it does: a number, other rows, a distance from dynamic routing."""
    ours, said = _mean(row.recipe, row, evidence), []
    if row.goal is not None:
        reached = "" if ours is None else ", reached" if ours >= row.goal - 1e-9 else ", **not reached**"
        said.append(f"≥ {row.goal:g}{reached}")
    for other in row.above:
        theirs = _mean(other, row, evidence)
        known = ours is not None and theirs is not None
        told = "" if not known else f" ({theirs:.2f}): " + ("yes" if ours > theirs else "**no**")  # type: ignore[operator]
        said.append(f"above `{other}`{told}")
    if row.routing != "as_trained" and ours is not None:
        lost = round((_mean(row.recipe, row, evidence, "as_trained") or 0.0) - ours, 2) + 0.0  # no negative zero
        limit = (
            ""
            if row.within is None
            else f", at most {row.within:g}: " + ("yes" if lost <= row.within + 1e-9 else "**no**")
        )
        said.append(f"loses {lost:.2f} against dynamic{limit}")
    elif row.within is not None:
        said.append(f"loses at most {row.within:g} against dynamic")
    return "; ".join(said) or "-"


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.2f}{spread} (n={len(values)})"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
