"""Self-routing: programs that hold a sample over shared transforms, and kernels of shares around the contractions."""

import dataclasses
from typing import Any, NamedTuple

import torch

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned, products
from capsroute.form.launches.lists import ContractionPlan, both_launch, contraction_plan
from capsroute.form.launches.shared_transforms import SHARED_TILE, STEP, shared_pose
from capsroute.form.sizes import GRID_ROWS, Sizes, cdiv, power_of_2

MOST_HELD = 1 << 13  # parents of a child
NUMBERS = 1 << 9  # logits that a warp holds at once: [(child, sample), j], of each half a dozen numbers
MOST_CHUNKS = 3  # of parents, which a program takes one after the other between children and transforms


class SharedPlan(NamedTuple):
    """The launches over shared transforms: a walk there, and one back.

    Where programs of the walk have shares of a sample's children, or where parents are many, a `step` follows for the
    parents, and on the way back a `pull` through transforms comes first.
    """

    walk: Launch
    step: Launch | None
    pull: Launch | None
    back: Launch
    sequences: dict[tuple, list]


@planned
def shared_plan(s: Sizes, dtype: torch.dtype, multiply: str) -> SharedPlan:
    pose = shared_pose(s)
    widest, product, core = max(pose["JP"], pose["FP"]), pose["JP"] * pose["FP"], pose["AP"] * pose["KP"]
    transform = core * pose["OP"]
    most = max(16, min(128, SHARED_TILE // widest, power_of_2(s.i)))
    free = max(1, 2 * cost.CORES // s.b)  # programs for each sample
    few = max(16, min(most, power_of_2(cdiv(s.b * s.i, cost.CORES))))

    def walk(children: int, splits: int) -> Launch:
        share = children * cdiv(cdiv(s.i, children), splits)
        warps = 8 if children * widest >= 8 * NUMBERS or product > 1024 else 4
        groups = max(1, min(children // 16, warps // (product // 128)))
        some = max(1, min(power_of_2(s.j), warps * STEP // transform))
        options: dict[str, Any] = {**pose, **products(dtype, multiply), "IC": children, "JC": some, "G": groups}
        splits = cdiv(s.i, share)
        return Launch((s.b, splits, 1), share, splits, {**options, "num_warps": warps})

    alone = walk(most, 1)
    chunks = cdiv(s.j, alone.options["JC"])
    apart = chunks > MOST_CHUNKS and s.b <= cost.CORES
    split = s.b < cost.CORES and cost.shares_children(s)
    some = max(1, min(4 * STEP // transform, power_of_2(cdiv(s.b * s.j, 4 * cost.CORES))))
    grid = s.b, cdiv(s.j, some), 1
    poses = {name: pose[name] for name in ("A", "K", "O", "AP", "KP", "OP")} | {"JC": some, "num_warps": 4}
    there = alone if not split else walk(few, free)
    step = None
    if split or apart:
        together = max(1, min(power_of_2(there.splits), 2048 // (some * core)))
        step = Launch(grid, 1, 1, {**poses, "SP": together})
        there = _without(there, "A", "K", "O", "AP", "KP", "OP", "JC", F=s.a * s.k)
    # Gradients are no sums over children: programs are many, and hold few children, so that several fit a core.
    most = max(16, min(few if s.b < cost.CORES else most, SHARED_TILE // 2 // widest))
    again = chunks > MOST_CHUNKS and not apart  # each program passes all parents through transforms
    back = _without(walk(most, max(1, (1 if again else 4) * cost.CORES // s.b)), "G")
    return SharedPlan(there, step, Launch(grid, 1, 1, poses) if apart else None, back, {})


def _without(launch: Launch, *names: str, **more: int) -> Launch:
    """The same with other options."""
    options = {name: value for name, value in launch.options.items() if name not in names}
    return Launch(launch.grid, launch.tiles, launch.splits, {**options, **more})


class SharesPlan(NamedTuple):
    """The launches around the contractions, of which the gradient by children is one of ours; both of `few` rows."""

    share: Launch
    add: Launch
    weigh: Launch
    known: Launch
    few: Launch | None
    children: Launch
    slopes: Launch
    contractions: ContractionPlan
    sequences: dict[tuple, list]


@planned
def shares_plan(s: Sizes, dtype: torch.dtype, multiply: str, listed: bool) -> SharesPlan:
    """`listed`: weights are a list [b,i,j], and not a plane."""
    parents = power_of_2(s.j)
    children = max(1, min(power_of_2(s.i), 4 * NUMBERS // parents))
    share = children * cdiv(cdiv(s.i, children), max(1, 4 * cost.CORES // s.b))
    splits = cdiv(s.i, share)
    tile = {"IC": children, "JP": parents, "num_warps": _warps(children * parents)}
    shared_out = Launch((s.b, splits, 1), share, splits, tile)
    across = min(128, parents)
    together = max(1, min(power_of_2(splits), 2048 // across))
    add = Launch((s.b, cdiv(s.j, across), 1), 1, 1, {"SP": together, "JC": across, "num_warps": 4})
    samples = min(32, power_of_2(s.b))
    pairs = 2048 // samples
    weigh = Launch((cdiv(s.i * s.j, pairs), cdiv(s.b, samples), 1), 1, 1, {"BN": samples, "M": pairs, "num_warps": 4})
    if listed:
        weigh = Launch((cdiv(s.b * s.i * s.j, 2048), 1, 1), 1, 1, {"BN": 1, "M": 2048, "num_warps": 4})
    pose = power_of_2(s.a * s.o)
    poses = max(1, 1024 // pose)
    tile = {"AO": s.a * s.o, "AOP": pose, "JC": poses, "num_warps": 4}
    known = Launch((cdiv(s.b * s.j, poses), 1, 1), 1, 1, tile)
    contractions = contraction_plan(s, dtype, multiply)
    return SharesPlan(
        shared_out, add, weigh, known, both_launch(s), _one_tile(s, contractions.children),
        _slopes(s, parents, listed), contractions, {},
    )  # fmt: skip


def _warps(numbers: int) -> int:
    return max(4, min(16, numbers // NUMBERS))


def _one_tile(s: Sizes, launch: Launch) -> Launch:
    """The gradient by children, of one tile of children a program: it holds those, too."""
    tiles, across = cdiv(s.i, launch.options["IC"]), launch.options["ACROSS"]
    if across or tiles > GRID_ROWS:
        return _without(launch, "JT")
    grid = launch.grid[0], tiles, launch.grid[2]
    return dataclasses.replace(_without(launch, "JT", NSUB=1), grid=grid)


def _slopes(s: Sizes, parents: int, listed: bool) -> Launch:
    """Some samples at once, which lie next to each other in a plane: four of a thousand parents, more of few."""
    samples = 1 if listed else max(1, min(32, 8 * NUMBERS // parents, power_of_2(s.b)))
    children = max(1, min(power_of_2(s.i), 4 * NUMBERS // (samples * parents)))
    tiles = cdiv(s.b, samples)
    share = children * cdiv(cdiv(s.i, children), max(1, 4 * cost.CORES // tiles))
    tile = {"BN": samples, "IC": children, "JP": parents, "num_warps": _warps(2 * samples * children * parents)}
    return Launch((tiles, cdiv(s.i, share), 1), share, 1, tile)
