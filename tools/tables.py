"""Tables made of evidence: one per paper, a row per published number, every figure from a committed run."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence

from capsroute.training import list_recipes
from tools.evidence import Evidence
from tools.rows import PAPERS, Row
from tools.throughput import Speeds, expected

Runs = dict[str, list[Evidence]]
COLUMNS = (
    "row",
    "in the paper",
    "published",
    "recipe",
    "as trained (mean ± spread, n)",
    "same weights, uniform coefficients",
    "trained without routing",
    "goal",
    "looks at the test set",
    "parameters",
    "time to train",
    "hardware",
    "command",
    "notes",
)
MAIN_COLUMNS = (
    "row",
    "published",
    "as trained (mean ± spread, n)",
    "same weights, uniform coefficients",
    "trained without routing",
    "goal",
)


def render(
    rows: Sequence[Row], evidence: Runs, looks: dict[str, int] | None = None, speeds: Speeds | None = None
) -> str:
    """The tables as Markdown. A row without runs says so, and how long one would take; spread is the sample standard
    deviation.

    >>> from tools.rows import Row
    >>> from tools.tables import render
    >>> print(render([Row("zhao", "MNIST", "none", published=99.55)], {}).splitlines()[-1][:60])
    | MNIST | - | 99.55 | ours | not run | - | not run | ≥ 99.55
    """
    parts = []
    for paper, title in PAPERS.items():
        lines = [_line(row, evidence, looks or {}, speeds or {}) for row in rows if row.paper == paper]
        if lines:
            parts.append("\n".join([f"## {title}", "", *_head(COLUMNS), *lines]))
    return "\n\n".join(parts) + "\n"


def render_main(rows: Sequence[Row], evidence: Runs) -> str:
    """One short table for the README of the repository: the rows marked `main`, reached or not.

    >>> from tools.rows import Row
    >>> from tools.tables import render_main
    >>> len(render_main([Row("zhao", "MNIST", "none", published=99.55, main=True)], {}).splitlines())
    3
    """
    lines = []
    for row in rows:
        if row.main:
            cells = dict(zip(COLUMNS, _cells(row, evidence, {}, {})))
            cells["row"] += f" ({PAPERS[row.paper].partition(',')[0]})"
            lines.append(_joined([cells[column] for column in MAIN_COLUMNS]))
    return "\n".join([*_head(MAIN_COLUMNS), *lines]) + "\n"


def _head(columns: Sequence[str]) -> list[str]:
    return [_joined(columns), "|" + "---|" * len(columns)]


def _joined(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _line(row: Row, evidence: Runs, looks: dict[str, int], speeds: Speeds) -> str:
    command = f"`{row.command}`" if row.command else "-"
    return _joined([*_cells(row, evidence, looks, speeds), command, row.note or "-"])


def _cells(row: Row, evidence: Runs, looks: dict[str, int], speeds: Speeds) -> list[str]:
    """From the row's name to the hardware."""
    runs = _measured(row.recipe, row, evidence)
    values = [run.accuracy[row.test] for run in runs]
    control = dataclasses.replace(row, routing="as_trained")
    without = [run.accuracy[row.test]["as_trained"] for run in _measured(row.without, control, evidence)]
    published = row.number
    return [
        row.name + (f" [{row.stand_in}]" if row.stand_in else ""),
        row.source or "-",
        row.said or "-" if published is None else f"{published:g}",
        f"none: {row.no_recipe}" if row.no_recipe else "the paper's" if row.own else "ours",
        _spread([value[row.routing] for value in values]) or "not run",
        _spread([value["uniform"] for value in values if "uniform" in value]) or "-",
        _spread(without) or ("has no routing" if row.plain else "not run"),
        _verdict(row, evidence),
        str(looks.get(row.recipe, "-")),
        f"{runs[0].parameters:,}" if runs else "-",
        _duration(statistics.fmean(run.seconds for run in runs)) if runs else _would_take(row, speeds),
        ", ".join(sorted({run.hardware for run in runs})) or "-",
    ]


def _measured(recipe: str, row: Row, evidence: Runs) -> list[Evidence]:
    """The runs of a recipe that measured what the row is about."""
    return [run for run in evidence.get(recipe, []) if row.routing in run.accuracy.get(row.test, {})]


def _mean(recipe: str, row: Row, evidence: Runs, routing: str | None = None) -> float | None:
    values = [run.accuracy[row.test][routing or row.routing] for run in _measured(recipe, row, evidence)]
    return statistics.fmean(values) if values else None


def _verdict(row: Row, evidence: Runs) -> str:
    """What the row should reach, and whether it does: a number, other rows, a distance from as trained."""
    ours, said = _mean(row.recipe, row, evidence), []
    count = len(_measured(row.recipe, row, evidence))
    goal = row.number if row.goal is None else row.goal
    if goal is not None:
        reached = "" if ours is None else ", **not reached**"
        if ours is not None and ours >= goal - 1e-9:
            reached = ", reached" if count >= 3 else ", above it once" if count == 1 else f", above it (n={count})"
        said.append(f"≥ {goal:g}{reached}")
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
        said.append(f"loses {lost:.2f} against as trained{limit}")
    elif row.within is not None:
        said.append(f"loses at most {row.within:g} against as trained")
    return "; ".join(said) or "-"


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.2f} (once)"
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} (n={len(values)})"


def _would_take(row: Row, speeds: Speeds) -> str:
    """How long a seed of a row that was not run would take."""
    found = expected(row.recipe, speeds) if row.recipe in list_recipes() else None
    if found is None:
        return "-"
    told, speed = _told(found.seconds), found.images_per_second
    if found.gigaflop:
        rates = (found.gigaflop * 3 * speed / 1e3, found.gigaflop * 3 * speed * found.seconds / found.at_best / 1e3)
        return (
            f"would take between {_told(found.at_best)} and {told} a seed: {found.gigaflop:.2g} GFLOP an image, at the "
            f"{rates[0]:.0f} to {rates[1]:.0f} TFLOP/s of networks that were timed on {found.hardware}"
        )
    if found.like:
        return f"would take about {told} a seed, at the {speed:,.0f} images/s of `{found.like}` on {found.hardware}"
    return f"would take {told} a seed, at {speed:,.0f} images/s on {found.hardware}"


def _told(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else _duration(seconds)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
