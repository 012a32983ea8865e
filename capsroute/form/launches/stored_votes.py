"""Votes that are made once and stored: programs that hold a sample, or some parents of one."""

from typing import Any, NamedTuple

import torch

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned, products
from capsroute.form.launches.lists import both_launch, normalise_launch, reduce_launch
from capsroute.form.sizes import Sizes, cdiv, power_of_2

VOTES_TILE = 1 << 13  # numbers of stored votes that a program holds at once: [i, j, f]
SPLIT_TILE = 1 << 13  # the same, of a program that has some parents of a sample and all its children
COLUMN_TILE = 1 << 12  # the same, of a program that has some parents of a sample and walks over its children
KEPT_TILE = 1 << 12  # the same, of a program that has all parents of a sample and a share of its children
MOST_KEPT = 1 << 14  # numbers of one child's votes, of which such a program holds two or three times as many
KEPT_WARPS, MOST_SHARES = 16, 1024  # of a core, to make votes; and the most sums that those programs leave
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
    return ColumnPlan(_votes(s), step, normalise_launch(s), gradients, {})


class KeptPlan(NamedTuple):
    """The launches that make votes of few rows and their first sum, or votes alone; walk over a share of a sample's
    children, there and back; add up what shares leave; and make gradients of all iterations."""

    sum: Launch
    votes: Launch
    walk: Launch
    back: Launch
    reduce: Launch
    splits: int  # the most partial sums that a launch leaves
    gradients: Launch
    sequences: dict[tuple, list]


@planned
def kept_plan(s: Sizes) -> KeptPlan | None:
    """None where rows are work for the matrix unit, where a program does not hold a child's votes, or where passes over
    the transforms are faster (`cost.keeps_votes`)."""
    gradients, each = both_launch(s), power_of_2(s.j) * power_of_2(s.a * s.o)
    if gradients is None or each > MOST_KEPT or s.b * s.i * s.j * s.a * s.o >= 1 << 31 or not cost.keeps_votes(s):
        return None
    votes, walk = _votes(s), _kept_walk(s, each)
    across = votes.grid[1] * votes.grid[2] * votes.options["num_warps"]
    shares = max(1, min(cdiv(s.i, 2), MOST_SHARES, cost.CORES * KEPT_WARPS // across))
    children = cdiv(s.i, shares)
    made = Launch((cdiv(s.i, children), *votes.grid[1:]), children, cdiv(s.i, children), votes.options)
    splits = max(made.splits, walk.splits)
    return KeptPlan(made, votes, walk, walk, reduce_launch(s, splits), splits, gradients, {})


def _kept_walk(s: Sizes, each: int) -> Launch:
    """As many programs as run at once, two a core of 100 registers a thread, each with some tiles of children.

    Two tiles are on their way, through shared memory, while one is worked on. Of small layers tiles are smaller, until
    each core has one.
    """
    tile = max(KEPT_TILE, each)
    children = min(power_of_2(s.i), tile // each)
    while children * each > KEPT_TILE // 8 and children > 1 and s.b * cdiv(s.i, children) < cost.CORES - 4:
        children //= 2
    chunks, programs = cdiv(s.i, children), cost.CORES * max(1, 2 * KEPT_TILE // tile)
    walk = cdiv(chunks, max(1, programs // s.b)) * children
    warps = max(1, min(16, children * each // 512))
    pose = {"F": s.a * s.o, "JP": power_of_2(s.j), "FP": power_of_2(s.a * s.o)}
    options = {**pose, "IC": children, "APART": each < 128 * warps, "num_warps": warps}
    return Launch((s.b, cdiv(s.i, walk), 1), walk, cdiv(s.i, walk), {**options, "NS": 1 if walk == children else 3})


def _votes(s: Sizes) -> Launch:
    """A program for a child, some rows (sample, pose row) and columns (parent, o)."""
    rows, columns = min(16, power_of_2(s.b * s.a)), min(256, power_of_2(s.j * s.o))
    options = {"A": s.a, "K": s.k, "O": s.o, "R": rows, "C": columns, "num_warps": max(1, rows * columns // 1024)}
    return Launch((s.i, cdiv(s.b * s.a, rows), cdiv(s.j * s.o, columns)), 1, 1, options)


def _step(s: Sizes, pose: dict) -> Launch:
    """As many parents of a sample as a program holds with all its children; fewer until each core has a program.

    Twice as many of a hundred parents. Every program normalises the logits of all, a few hundred a warp.
    """
    children, warps = power_of_2(s.i), 16 if pose["JP"] > 64 else 8
    parents = max(1, min(pose["JP"], warps // 8 * SPLIT_TILE // (children * pose["FP"])))
    while parents > 1 and s.b * cdiv(s.j, parents) < cost.CORES - 4:
        parents //= 2
    numbers = max(children * parents * pose["FP"], 4 * children * pose["JP"])
    options = {**pose, "IC": children, "JT": parents, "num_warps": max(1, min(warps, numbers // 512))}
    return Launch((s.b, cdiv(s.j, parents), 1), 1, 1, options)
