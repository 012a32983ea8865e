"""Votes that are made once and stored: programs that hold a sample, or some parents of one."""

from typing import Any, NamedTuple

import torch

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned, products
from capsroute.form.launches.lists import both_launch, normalise_launch
from capsroute.form.sizes import Sizes, cdiv, power_of_2

VOTES_TILE = 1 << 13  # numbers of stored votes that a program holds at once: [i, j, f]
SPLIT_TILE = 1 << 13  # the same, of a program that has some parents of a sample and all its children
COLUMN_TILE = 1 << 12  # the same, of a program that has some parents of a sample and walks over its children
MOST_VOTES = 1 << 12  # numbers of one child's votes, where they are stored


class ResidentPlan(NamedTuple):
    """The launches that make votes, walk over them, and make gradients of theirs.

    Where parents of a sample are shared out (`cost.splits_votes`), a `step` is one iteration.
    """

    votes: Launch
    loop: Launch
    gradients: Launch
    step: Launch | None
    sequences: dict[tuple, list]


@planned
def resident_plan(s: Sizes, dtype: torch.dtype, multiply: str) -> ResidentPlan | None:
    """None where a program does not hold all parents, or where the passes are faster (`cost.holds_votes`)."""
    pose = {"F": s.a * s.o, "JP": power_of_2(s.j), "FP": power_of_2(s.a * s.o)}
    each = pose["JP"] * pose["FP"]
    if each > MOST_VOTES or s.k > 64 or s.b * s.i * s.j * s.a * s.o >= 1 << 31 or not cost.holds_votes(s):
        return None
    tile = min(max(1, VOTES_TILE // each), power_of_2(s.i))
    warps = max(1, min(16 if s.b <= cost.CORES else 8, tile * each // 512))
    loop = Launch((s.b, 1, 1), 1, 1, {**pose, "IC": tile, "num_warps": warps})
    sizes: dict[str, Any] = {"A": s.a, "K": s.k, "O": s.o}
    # Programs that make the gradient of transforms walk over all rows: in eight steps, where those are many.
    rows = max(32, min(128, power_of_2(s.b * s.a) // 8))
    options = {**sizes, **products(dtype, multiply), "KP": max(16, power_of_2(s.k)), "R": rows, "C": 64}
    options["num_warps"] = 8 if rows == 128 else 4
    tiles = cdiv(s.b * s.a, rows)
    gradients = Launch((s.i, tiles + cdiv(s.j * s.o, 64), 1), tiles, 1, options)
    return ResidentPlan(_votes(s), loop, gradients, _step(s, pose) if cost.splits_votes(s) else None, {})


class ColumnPlan(NamedTuple):
    """The launches that make votes of few rows, walk over those of some parents, and make gradients of all steps."""

    votes: Launch
    step: Launch
    normalise: Launch
    gradients: Launch
    sequences: dict[tuple, list]


@planned
def column_plan(s: Sizes) -> ColumnPlan | None:
    """About two programs a core. None where rows are work for the matrix unit, or parents are few."""
    gradients = both_launch(s)
    if gradients is None or not cost.walks_columns(s):
        return None
    pose = power_of_2(s.a * s.o)
    parents = max(1, min(power_of_2(s.b * s.j // (2 * cost.CORES) or 1), COLUMN_TILE // (16 * pose)))
    children = max(1, min(power_of_2(s.i), COLUMN_TILE // (parents * pose)))
    warps = max(1, min(8, parents * children * pose // 512))
    options = {"F": s.a * s.o, "FP": pose, "JT": parents, "IC": children, "num_warps": warps}
    step = Launch((s.b, cdiv(s.j, parents), 1), 1, 1, options)
    return ColumnPlan(_votes(s), step, normalise_launch(s._replace(b=1, i=s.b * s.i)), gradients, {})


def _votes(s: Sizes) -> Launch:
    """A program for a child, some rows (sample, pose row) and columns (parent, o)."""
    rows, columns = min(16, power_of_2(s.b * s.a)), min(256, power_of_2(s.j * s.o))
    options = {"A": s.a, "K": s.k, "O": s.o, "R": rows, "C": columns, "num_warps": max(1, rows * columns // 1024)}
    return Launch((s.i, cdiv(s.b * s.a, rows), cdiv(s.j * s.o, columns)), 1, 1, options)


def _step(s: Sizes, pose: dict) -> Launch:
    """As many parents of a sample as a program holds with all its children; fewer until each core has a program.

    Twice as many of a hundred parents, whose logits every program normalises.
    """
    children, warps = power_of_2(s.i), 16 if pose["JP"] > 64 else 8
    parents = max(1, min(pose["JP"], warps // 8 * SPLIT_TILE // (children * pose["FP"])))
    while parents > 1 and s.b * cdiv(s.j, parents) < cost.CORES - 4:
        parents //= 2
    numbers = children * parents * pose["FP"]
    options = {**pose, "IC": children, "JT": parents, "num_warps": max(1, min(warps, numbers // 512))}
    return Launch((s.b, cdiv(s.j, parents), 1), 1, 1, options)
