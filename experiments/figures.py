"""What the experiments' CSVs say: numbers first, then pictures in the style of `capsroute.analysis`, and tables."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, median, stdev

import torch

from capsroute.analysis.style import COLOURS, HEAT, colour_bar, drawing, grid, picture, save_figure
from experiments.heads import CONTROLS
from experiments.scenes import VARIANTS
from experiments.training import read

Curves = dict[tuple[str, str], dict[int, list[float]]]
SHORT = 10  # points below the median of all heads: a head that never gets nearer sets no level for the others


def by_clutter(rows: list[dict[str, str]], metric: str) -> Curves:
    """(variant, method) -> clutter -> a value for each seed."""
    found: Curves = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["phase"] == "test" and row["metric"] == metric:
            found[row["variant"], row["method"]][int(row["clutter"])].append(float(row["value"]))
    return found


def in_order(found: Curves, variant: str, falling: bool) -> list[str]:
    """Methods of a variant, the best with most clutter first."""
    methods = [method for v, method in found if v == variant]

    def last(method: str) -> float:
        return mean(found[variant, method][max(found[variant, method])])

    return sorted(methods, key=last, reverse=falling)


METRICS = (("ari", "ARI of point to object"), ("pose_error", "pose error"))


def constellations_table(path: Path) -> str:
    """Every head against clutter in Markdown: mean and deviation of the seeds, best with most clutter first."""
    rows, text = read(path), []
    for variant in _variants(rows):
        for metric, title in METRICS:
            found = by_clutter(rows, metric)
            methods = in_order(by_clutter(rows, "ari"), variant, True)
            clutters = sorted(found[variant, methods[0]])
            values = [[found[variant, method][c] for c in clutters] for method in methods]
            text += [
                f"**{title}, {variant}**, against points of clutter:",
                "",
                _table("", methods, clutters, values, 3),
                "",
            ]
    return "\n".join([*text, "**ARI against others**, difference and its standard error:", "", differences_table(path)])


AGAINST = ("exhaustive", "uniform", "self_routing")


def differences_table(path: Path) -> str:
    """With most clutter, how far the ARI of each head is from the best possible, from equal coefficients and from the
    gate without agreement: difference of means and its standard error."""
    rows, text = read(path), []
    for variant in _variants(rows):
        found = by_clutter(rows, "ari")
        most = max(found[variant, "exhaustive"]) if (variant, "exhaustive") in found else 0
        heads = [method for method in in_order(found, variant, True) if method != "exhaustive"]
        against = [other for other in AGAINST if (variant, other) in found]
        if len(heads) < 2:
            continue
        columns = [f"minus {other.replace('_', ' ')}" for other in against]
        lines = [f"| {variant}, {most} points | " + " | ".join(columns) + " |", "|" + "---|" * (1 + len(columns))]
        for head in heads:
            cells = [_difference(found[variant, head][most], found[variant, other][most]) for other in against]
            lines.append("| " + " | ".join([head.replace("_", " "), *cells]) + " |")
        text += ["\n".join(lines), ""]
    return "\n".join(text)


def _difference(ours: list[float], theirs: list[float]) -> str:
    if ours == theirs:
        return "-"
    error = math.sqrt(sum(stdev(values) ** 2 / len(values) for values in (ours, theirs) if len(values) > 1))
    return f"{mean(ours) - mean(theirs):+.3f} ± {error:.3f}"


@drawing
def draw_constellations(path: Path) -> None:
    """The same numbers in colours, means of the seeds: a picture beside the CSV."""
    rows = read(path)
    variants = _variants(rows)
    ordered = {variant: in_order(by_clutter(rows, "ari"), variant, True) for variant in variants}
    heights = [4 + len(methods) for methods in ordered.values()]
    figure = picture(7.6, 0.17 * sum(heights))
    for across, (variant, methods) in zip(grid(figure, len(variants), 2, height_ratios=heights), ordered.items()):
        for one, (metric, title), high, colours in zip(across, METRICS, (1.0, 0.5), (HEAT, f"{HEAT}_r")):
            found = by_clutter(rows, metric)
            clutters = sorted(found[variant, methods[0]])
            cells = [[mean(found[variant, method][c]) for c in clutters] for method in methods]
            drawn = _heat(one, cells, methods, clutters, 0.0, high, colours, 2)
            one.set(title=f"{title}, {variant}", xlabel="points of clutter")
            colour_bar(figure, drawn, one, title)
    save_figure(figure, path.with_suffix(""))


def _variants(rows: list[dict[str, str]]) -> list[str]:
    return [variant for variant in VARIANTS if any(row["variant"] == variant for row in rows)]


def _heat(axes, cells, rows, columns, low, high, colours, digits):
    drawn = axes.imshow(torch.tensor(cells).numpy(), cmap=colours, vmin=low, vmax=high, aspect="auto")
    axes.set_xticks(range(len(columns)), [str(c) for c in columns])
    axes.set_yticks(range(len(rows)), [r.replace("_", " ") for r in rows])
    middle = (low + high) / 2
    for y, row in enumerate(cells):
        for x, value in enumerate(row):
            light = (value > middle) != colours.endswith("_r")
            axes.text(x, y, f"{value:.{digits}f}", ha="center", va="center", fontsize=6, color="k" if light else "w")
    return drawn


def _table(corner: str, rows: list[str], columns: Sequence, values: list[list[list[float]]], digits: int) -> str:
    """Mean and deviation of the numbers in each cell; a cell without numbers says so."""
    lines = ["| " + " | ".join([corner, *map(str, columns)]) + " |", "|" + "---|" * (1 + len(columns))]
    for name, cells in zip(rows, values):
        lines.append("| " + " | ".join([name.replace("_", " "), *(_cell(cell, digits) for cell in cells)]) + " |")
    return "\n".join(lines)


def _cell(values: list[float], digits: int) -> str:
    if not values:
        return "not reached"
    text = f"{mean(values):.{digits}f}"
    return f"{text} ± {stdev(values):.{digits}f}" if len(values) > 1 else text


# Viewpoints


class Run:
    """The curve of one seed: familiar and novel accuracy, and that of each bin, along training."""

    def __init__(self) -> None:
        self.looks: list[tuple[int, float, float, dict[str, float]]] = []

    @property
    def best(self) -> float:
        return max(look[1] for look in self.looks)

    def at(self, level: float) -> dict[str, float] | None:
        """Accuracies where the familiar one first reaches the level, between two looks; None where it never does."""
        before = None
        for look in sorted(self.looks):
            now = {"familiar": look[1], "novel": look[2], **look[3]}
            if look[1] >= level:
                if before is None or now["familiar"] == before["familiar"]:
                    return now
                share = (level - before["familiar"]) / (now["familiar"] - before["familiar"])
                return {key: before[key] + share * (now[key] - before[key]) for key in now}
            before = now
        return None

    def last(self) -> dict[str, float]:
        _, familiar, novel, bins = max(self.looks, key=lambda look: look[0])
        return {"familiar": familiar, "novel": novel, **bins}


def curves(rows: list[dict[str, str]]) -> dict[str, dict[str, dict[int, Run]]]:
    """task -> method -> seed -> its curve."""
    found: dict = defaultdict(lambda: defaultdict(lambda: defaultdict(Run)))
    for row in rows:
        if row["phase"] == "test":
            bins = dict(cell.rsplit(": ", 1) for cell in row["bins"].split("; "))
            look = (
                int(row["step"]),
                float(row["familiar"]),
                float(row["novel"]),
                {k: float(v) for k, v in bins.items()},
            )
            found[row["task"]][row["method"]][int(row["seed"])].looks.append(look)
    return found


def matched_level(runs: dict[str, dict[int, Run]]) -> tuple[float, list[str]]:
    """The highest whole per cent of familiar accuracy that every seed of every head reaches, and the heads left out."""
    worst = {method: min(run.best for run in seeds.values()) for method, seeds in runs.items()}
    out = [method for method, value in worst.items() if value < median(worst.values()) - SHORT / 100]
    return math.floor(100 * min(v for method, v in worst.items() if method not in out)) / 100, out


def read_matched(runs: dict[str, dict[int, Run]]) -> tuple[float, dict[str, list[dict[str, float]]]]:
    """The level, and what each seed of each head that reaches it has there: best on novel views first."""
    level, out = matched_level(runs)
    found = {m: [run.at(level) or {} for run in seeds.values()] for m, seeds in runs.items() if m not in out}
    return level, dict(sorted(found.items(), key=lambda pair: -mean(values["novel"] for values in pair[1])))


def viewpoints_table(path: Path) -> str:
    """Every head in Markdown: novel accuracy at matched familiar accuracy, and both at the end of training."""
    text = []
    for task, runs in curves(read(path)).items():
        level, matched = read_matched(runs)
        methods = [*matched, *(m for m in runs if m not in matched)]
        values = []
        for method in methods:
            ends = [run.last() for run in runs[method].values()]
            novel = [100 * values["novel"] for values in matched.get(method, [])]
            values.append([novel, *([100 * end[key] for end in ends] for key in ("familiar", "novel"))])
        columns = (f"novel, where familiar is {100 * level:.0f}", "familiar, at the end", "novel, at the end")
        text += [f"**{task}**, accuracy in %:", "", _table("", methods, columns, values, 1), ""]
    return "\n".join(text)


@drawing
def draw_viewpoints(path: Path) -> None:
    """Novel accuracy at matched familiar accuracy, every seed, and the mean of each bin: a picture beside the CSV."""
    found = curves(read(path))
    figure = picture(3.4 * len(found), 6.4)
    axes = grid(figure, 2, len(found))
    for at, (task, runs) in enumerate(found.items()):
        level, matched = read_matched(runs)
        top, under = axes[0][at], axes[1][at]
        for y, (method, seeds) in enumerate(matched.items()):
            novel = [100 * values["novel"] for values in seeds]
            colour = COLOURS[1] if method in CONTROLS else COLOURS[0]
            top.plot(novel, [y] * len(novel), ".", color=colour, alpha=0.5)
            top.plot([mean(novel)], [y], "|", color=colour, markersize=9)
        top.set_yticks(range(len(matched)), [method.replace("_", " ") for method in matched])
        top.invert_yaxis()
        top.grid(alpha=0.25, linewidth=0.5)
        top.set(title=f"{task}, familiar {100 * level:.0f} %", xlabel="novel accuracy (%)")
        bins = [key for key in next(iter(matched.values()))[0] if key not in ("familiar", "novel")]
        cells = [[100 * mean(values[key] for values in seeds) for key in bins] for seeds in matched.values()]
        drawn = _heat(under, cells, list(matched), bins, 20.0, 100.0, HEAT, 0)
        under.tick_params(axis="x", rotation=60)
        colour_bar(figure, drawn, under, "accuracy (%)")
    save_figure(figure, path.with_suffix(""))
