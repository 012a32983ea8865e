"""Transforms that all children share: programs that hold a sample, and walks over shares of its children."""

from typing import NamedTuple

import torch
import triton.language as tl

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned, products
from capsroute.form.sizes import Sizes, cdiv, power_of_2

SHARED_TILE = 1 << 13  # logits of shared transforms that a program holds at once: [i, j]
STEP = 1 << 10  # numbers of a product with some transforms, for each warp: [j, a, k, o]
LEAST_ALONE, PROGRAMS_ALONE = 4, 16  # children that a program takes one after the other, and of how many programs
MOST_FIRST = 1 << 12  # numbers of all children of a sample that are summed for each parent anew
MOST_OUTER = 1 << 16  # products of rows, for each parent, that are made outside the matrix unit


def shared_pose(s: Sizes) -> dict[str, int]:
    """Sizes of one pose, and what they are padded to."""
    return {
        "A": s.a, "K": s.k, "O": s.o, "AP": power_of_2(s.a), "KP": power_of_2(s.k), "OP": power_of_2(s.o),
        "JP": max(16, power_of_2(s.j)), "FP": max(16, power_of_2(s.a * s.k)),
    }  # fmt: skip


@planned
def shared_launch(s: Sizes, dtype: torch.dtype, multiply: str) -> Launch:
    """A program for each sample: as many children in a tile, and warps for them, as registers hold."""
    pose = shared_pose(s)
    widest, product = max(pose["JP"], pose["FP"]), pose["JP"] * pose["FP"]
    alone = s.b <= cost.CORES  # a program has a core to itself
    children = min(256 if alone and widest == 16 else 128, SHARED_TILE // widest, max(16, power_of_2(s.i)))
    warps = 8 if children * widest > 4096 or product > 1024 or (alone and children * widest > 2048) else 4
    some = max(1, min(power_of_2(s.j), warps * STEP // (pose["AP"] * pose["KP"] * pose["OP"])))
    groups = max(1, min(children // 16, warps // (product // 128)))
    options = {**pose, **products(dtype, multiply), "IC": children, "JC": some, "G": groups, "num_warps": warps}
    return Launch((s.b, 1, 1), 1, 1, options)


@planned
def shared_step_launch(s: Sizes, dtype: torch.dtype, multiply: str) -> Launch:
    """As `shared_launch`, for a step: twice the warps where a core has one sample, of many children or parents.

    The matrix unit cuts what it adds up: it adds 16 children at most of float32 in parts.
    """
    options = dict(shared_launch(s, dtype, multiply).options)
    children, widest, product = options["IC"], max(options["JP"], options["FP"]), options["JP"] * options["FP"]
    if s.b <= cost.CORES and options["num_warps"] == 4 and options["JC"] < s.j:
        options.update(num_warps=8, JC=2 * options["JC"])
    in_parts = dtype != torch.bfloat16 and multiply != "tf32"
    if s.b <= cost.CORES // 8 and s.i >= 8 * children and children * widest <= 4096 and not in_parts:
        children = 2 * children
        options.update(IC=children, num_warps=16, G=max(1, min(children // 16, 16 // (product // 128))))
    if in_parts and children // 16 * product <= 1 << 13:
        options.update(G=children // 16)
    return Launch((s.b, 1, 1), 1, 1, options)


class SharedPlan(NamedTuple):
    """The launches of walks over shares of a sample's children (of `tiles` each), and of the steps between them.

    Of few children each program of the first step makes the sum itself. The walk back may have larger shares.
    """

    walk: Launch
    back: Launch
    step: Launch
    sums_first: bool
    sequences: dict[tuple, list]


@planned
def shared_plan(s: Sizes, dtype: torch.dtype, multiply: str) -> SharedPlan:
    """About two programs a core: small tiles of children, where there are few of them all in all.

    Of many parents a program takes one child after the other (`cost.walks_alone`), four at least, since partial sums
    are large; fewer, where no sixteen programs would have any: 32 children of 1000 parents take 49 us for 65. On the
    way back those sums lie beside the gradients: there it is one child more.
    """
    pose = shared_pose(s)
    widest, product, core = max(pose["JP"], pose["FP"]), pose["JP"] * pose["FP"], pose["AP"] * pose["KP"]
    children = max(16, min(128, SHARED_TILE // widest, power_of_2(s.b * s.i // cost.CORES), power_of_2(s.i)))
    numbers = max(children * widest, product)
    warps = 16 if numbers > 8192 else 8 if numbers > 4096 or product > 1024 else 4
    tiles = cdiv(s.i, children)
    share = children * cdiv(tiles, max(1, 2 * cost.CORES // s.b))
    groups = max(1, min(children // 16, warps // (product // 128)))
    options = {"F": s.a * s.k, "FP": pose["FP"], "JP": pose["JP"], **products(dtype, multiply), "IC": children}
    if cost.walks_alone(s):
        fewest = min(LEAST_ALONE, cdiv(s.b * s.i, PROGRAMS_ALONE))
        share, warps = max(fewest, cdiv(s.b * s.i, cost.CORES)), 16
        options.update(IC=1, DT=tl.float32, PRECISION="ieee")
    splits = cdiv(s.i, share)
    walk = Launch((s.b, splits, 1), share, splits, {**options, "G": groups, "num_warps": warps})
    back = walk
    if options["IC"] == 1 and share < LEAST_ALONE:
        back = Launch((s.b, cdiv(s.i, share + 1), 1), share + 1, cdiv(s.i, share + 1), walk.options)
    transform = core * pose["OP"]
    # Warps wait for each other where a small matrix lies in many of them: as few as hold it.
    few = pose["AP"] > 1 and splits <= 32
    least = max(1, 128 // transform) if few else 1
    some = max(least, min(4 * STEP // transform, power_of_2(max(1, s.b * s.j // (4 * cost.CORES)))))
    together = max(1, min(power_of_2(splits), 2048 // (some * core)))
    options = {name: pose[name] for name in ("A", "K", "O", "AP", "KP", "OP")}
    tile, warps = min(power_of_2(s.i), max(1, 2048 // core)), max(1, min(4, some * transform // 256)) if few else 4
    options.update(JC=some, SP=together, IC=tile, num_warps=warps)
    step = Launch((s.b, cdiv(s.j, some), 1), 1, 1, options)
    return SharedPlan(walk, back, step, s.i * core <= MOST_FIRST, {})


@planned
def outer_launch(parents: int, rows: int, k: int, o: int) -> Launch | None:
    """A program for each parent; None where its products are work for the matrix unit."""
    pose = power_of_2(k) * power_of_2(o)
    if rows * k * o > MOST_OUTER or pose > 4096:
        return None
    together = min(power_of_2(rows), 8192 // pose)
    warps = max(1, min(8, together * pose // 1024))
    options = {"K": k, "O": o, "KP": power_of_2(k), "OP": power_of_2(o), "NT": together, "num_warps": warps}
    return Launch((parents, 1, 1), 1, 1, options)
