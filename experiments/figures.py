"""What the experiments' CSVs say: numbers first, then pictures in the style of `capsroute.analysis`, and tables."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path
from statistics import mean, median, stdev

import torch

from capsroute.analysis.style import COLOURS, HEAT, colour_bar, drawing, grid, picture, save_figure
from experiments.heads import CONTROLS
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


@drawing
def draw_constellations(path: Path) -> str:
    """Numbers of every head against clutter, mean of the seeds, beside the CSV; the same as tables in Markdown."""
    rows = read(path)
    variants = [v for v in ("shifted", "similar") if any(row["variant"] == v for row in rows)]
    figure = picture(7.6, 3.6 * len(variants))
    axes = grid(figure, len(variants), 2)
    text = []
    for across, variant in zip(axes, variants):
        for one, (metric, title, best_first) in zip(
            across, (("ari", "ARI of point to object", True), ("pose_error", "pose error", False))
        ):
            found = by_clutter(rows, metric)
            methods = in_order(by_clutter(rows, "ari"), variant, True)
            clutters = sorted(found[variant, methods[0]])
            cells = [[mean(found[variant, method][c]) for c in clutters] for method in methods]
            low, high = (0.0, 1.0) if best_first else (0.0, 0.5)
            drawn = _heat(one, cells, methods, clutters, low, high, HEAT if best_first else f"{HEAT}_r", 2)
            one.set(title=f"{title}, {variant}", xlabel="points of clutter")
            colour_bar(figure, drawn, one, title)
            spread = [[_spread(found[variant, method][c]) for c in clutters] for method in methods]
            text += [f"{title}, {variant}", _table("method", methods, clutters, cells, spread, 3), ""]
    save_figure(figure, path.with_suffix(""))
    path.with_suffix(".md").write_text("\n".join(text), encoding="utf-8")
    return "\n".join(text)


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


def _spread(values: list[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _table(corner, rows, columns, cells, spread, digits) -> str:
    lines = ["| " + " | ".join([corner, *map(str, columns)]) + " |", "|" + "---|" * (1 + len(columns))]
    for name, values, around in zip(rows, cells, spread):
        each = [f"{v:.{digits}f} ± {s:.{digits}f}" if s else f"{v:.{digits}f}" for v, s in zip(values, around)]
        lines.append("| " + " | ".join([name, *each]) + " |")
    return "\n".join(lines)


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


@drawing
def draw_viewpoints(path: Path) -> str:
    """Novel accuracy at matched familiar accuracy: every seed, and the mean of each bin; the same as tables."""
    found = curves(read(path))
    tasks = [task for task in ("elevation", "azimuth", "affine") if task in found]
    figure = picture(3.4 * len(tasks), 6.4)
    axes = grid(figure, 2, len(tasks))
    text = []
    for at, task in enumerate(tasks):
        level, out = matched_level(found[task])
        read_at = {m: [run.at(level) for run in seeds.values()] for m, seeds in found[task].items() if m not in out}
        methods = sorted(read_at, key=lambda m: mean(values["novel"] for values in read_at[m]), reverse=True)
        top, under = axes[0][at], axes[1][at]
        for y, method in enumerate(methods):
            novel = [100 * values["novel"] for values in read_at[method]]
            colour = COLOURS[1] if method in CONTROLS else COLOURS[0]
            top.plot(novel, [y] * len(novel), ".", color=colour, alpha=0.5)
            top.plot([mean(novel)], [y], "|", color=colour, markersize=9)
        top.set_yticks(range(len(methods)), [m.replace("_", " ") for m in methods])
        top.invert_yaxis()
        top.grid(alpha=0.25, linewidth=0.5)
        top.set(title=f"{task}, familiar {100 * level:.0f} %", xlabel="novel accuracy (%)")
        bins = [key for key in read_at[methods[0]][0] if key not in ("familiar", "novel")]
        cells = [[100 * mean(v[key] for v in read_at[m]) for key in bins] for m in methods]
        drawn = _heat(under, cells, methods, bins, 20.0, 100.0, HEAT, 0)
        under.tick_params(axis="x", rotation=60)
        colour_bar(figure, drawn, under, "accuracy (%)")
        columns = ("novel, matched", "familiar, end", "novel, end")
        ends = {m: [run.last() for run in found[task][m].values()] for m in found[task]}
        values = {m: _columns(read_at.get(m), ends[m]) for m in [*methods, *out]}
        numbers = [[mean(v) if v else math.nan for v in values[m]] for m in values]
        spread = [[_spread(v) for v in values[m]] for m in values]
        text += [f"{task}: familiar {100 * level:.0f} %", _table("head", list(values), columns, numbers, spread, 1), ""]
    save_figure(figure, path.with_suffix(""))
    path.with_suffix(".md").write_text("\n".join(text), encoding="utf-8")
    return "\n".join(text)


def _columns(matched: list[dict[str, float]] | None, ends: list[dict[str, float]]) -> list[list[float]]:
    novel = [] if matched is None else [100 * values["novel"] for values in matched]
    return [novel, *([100 * values[key] for values in ends] for key in ("familiar", "novel"))]
