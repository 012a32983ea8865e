"""Steps of inverted attention, by the matrix unit and outside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned, products
from capsroute.form.launches.lists import reduce_launch
from capsroute.form.sizes import Sizes, cdiv, power_of_2

if TYPE_CHECKING:
    from capsroute.form.maps import Shape


class Arranged(NamedTuple):
    """Transforms or poses as the kernels read them, padded: how they are made, and their shape."""

    launch: Launch
    shape: tuple[int, ...]


class AttentionPlan(NamedTuple):
    """The launches of a step and of its derivative."""

    positions: int
    children: int
    transforms: Arranged  # [group, (child, k), column]
    poses: Arranged  # [p, a, column]
    forward: Launch
    parents: Launch
    both: Launch
    sequences: dict[tuple, list]  # of compiled launches, see `launch.LaunchSequence`


@planned
def attention_plan(s: Shape, dtype: torch.dtype, multiply: str) -> AttentionPlan:
    """16 rows, mostly of one warp; children (or positions) are split until there are about 3000 programs."""
    pose = s.padded
    shared: dict[str, Any] = {
        **pose, **s.geometry, **products(dtype, multiply), "J": s.j, "A": s.a, "K": s.k, "O": s.o,
        "PT": max(1, 16 // pose["AP"]), "NS": 3, "num_warps": 1,
    }  # fmt: skip
    tiles, groups = cdiv(s.positions, shared["PT"]), cdiv(s.children, pose["G"])
    walk = _walk(tiles, groups, shared)
    transforms = _arranged(groups * pose["G"], s.j, s.k, s.o, pose["JP"], pose["KP"], pose["OP"])
    poses = _arranged(s.positions, s.j, s.a, s.o, pose["JP"], pose["AP"], pose["OP"])
    parents, both = walk, _walk(groups, tiles, shared)
    # Of matrix poses in float32 the derivative leaves the registers of a warp. One H200, 800x6x6 -> 10, batch 128, two
    # steps in TF32: 0.83 ms so, 0.80 where that by parents has no pipeline, 0.73 where the other has two warps.
    if dtype == torch.float32 and pose["AP"] >= 4:
        parents = _walk(tiles, groups, {**shared, "NS": 1})
    if dtype == torch.float32 and pose["AP"] > 4:
        both = _walk(groups, tiles, {**shared, "NS": 2, "num_warps": 2})
    return AttentionPlan(s.positions, s.children, transforms, poses, walk, parents, both, {})


def _walk(held: int, walked: int, options: dict) -> Launch:
    """A program for each thing held and each part of what is walked over."""
    walk = cdiv(walked, min(walked, cdiv(3000, held)))
    splits = cdiv(walked, walk)
    return Launch((held, splits, 1), walk, splits, options)


def _arranged(entries: int, j: int, m: int, o: int, jp: int, mp: int, op: int) -> Arranged:
    """A program for every 1024 numbers of transforms or poses [e,j,m,o], padded."""
    options = {"J": j, "M": m, "O": o, "JP": jp, "MP": mp, "OP": op, "BLOCK": 1024, "num_warps": 4}
    launch = Launch((cdiv(entries * jp * mp * op, 1024), 1, 1), 1, 1, options)
    return Arranged(launch, (entries, mp, jp // 4, op // 2, 4, 2))


@planned
def few_launch(s: Sizes) -> Launch | None:
    """A program for each sample and some of its children; None where the matrix unit is faster (`cost.few_products`).

    A warp holds the transforms of 1024 numbers. Where a sample has no more than a few warps hold, one program has all.
    """
    if not cost.few_products(s):
        return None
    pose = {"J": s.j, "A": s.a, "K": s.k, "O": s.o}
    pose |= {"JP": power_of_2(s.j), "KP": power_of_2(s.k), "OP": power_of_2(s.o)}
    each = pose["JP"] * pose["KP"] * pose["OP"]
    alone = s.i * each <= 8192
    children = min(max(1, (4096 if alone else 1024) // each), power_of_2(s.i))
    tiles = cdiv(s.i, children)
    walk = tiles if alone else cdiv(tiles, min(tiles, cdiv(2048, s.b)))
    options = {**pose, "IC": children, "num_warps": max(1, children * each // 1024)}
    return Launch((s.b, cdiv(tiles, walk), 1), walk, cdiv(tiles, walk), options)


class FewPlan(NamedTuple):
    """The launches of all steps where products are few, and of the sums between them."""

    step: Launch
    reduce: Launch
    sequences: dict[tuple, list]


@planned
def few_plan(s: Sizes) -> FewPlan | None:
    """None where the matrix unit is faster."""
    step = few_launch(s)
    if step is None:
        return None
    reduce, numbers = reduce_launch(s, step.splits), power_of_2(s.a * s.o)
    if step.splits > 64:  # hundreds of them, at once
        rows = max(4, min(power_of_2(step.splits), (1 << 14) // numbers))
        tile = {"JC": 1, "SP": rows, "num_warps": max(1, min(16, rows * numbers // 512))}
        reduce = Launch((s.b, s.j, 1), 1, 1, {**reduce.options, **tile})
    return FewPlan(step, reduce, {})
