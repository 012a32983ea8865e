"""How time and memory grow: one size doubled at a time from a small layer, and the exponent that fits."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence

from capsroute.bench.cases import Case

__all__ = ["exponent", "sweep", "sweeps"]

AXES = ("children", "parents", "pose", "batch", "iterations")


def sweep(base: Case, axis: str, doublings: int) -> Iterator[Case]:
    """The base case with one size doubled again and again; `pose` doubles k and o together."""
    names = {"pose": ("k", "o")}.get(axis, (axis,))
    for power in range(doublings + 1):
        yield dataclasses.replace(base, **{name: getattr(base, name) * 2**power for name in names})


def sweeps(algorithm: str, doublings: int = 5) -> dict[str, list[Case]]:
    """A sweep of every axis of one algorithm; iterations stop at 16, and poses early: transforms grow squared."""
    gaussian = algorithm in ("em", "heinsen")
    rows, k, o = (4, 4, 4) if gaussian or algorithm == "inverted_attention" else (1, 8, 16)
    base = Case(algorithm, "sweep", 16, 256, 8, rows, k, o, iterations=2, shared=algorithm == "heinsen")
    found = {axis: list(sweep(base, axis, doublings)) for axis in AXES}
    return found | {"iterations": found["iterations"][:4], "pose": found["pose"][:5]}


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) against log(size), by least squares: 1 is linear.

    >>> from capsroute.bench.sweeps import exponent
    >>> round(exponent([1, 2, 4, 8], [3, 12, 48, 192]), 6)
    2.0
    """
    points = [(math.log(x), math.log(y)) for x, y in zip(sizes, values) if x > 0 and y > 0 and math.isfinite(y)]
    if len(points) < 2:
        return float("nan")
    mean_x, mean_y = (sum(p[axis] for p in points) / len(points) for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
