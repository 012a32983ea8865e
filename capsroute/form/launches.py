"""How kernels of lists and maps are launched: grid, tiles, warps and stages, decided once per shape from a few rules.

Nothing is tuned at run time. The rules generalise sizes that were tuned on an H200 for 1152x8 -> 10x16; other shapes
were timed once at most.

- 16 rows a warp; two warps a program hold 32 rows, which is what registers allow next to ten accumulators.
- A grid of about 512 programs in the passes, 128 in the uniform pass: children are split until there are as many.

Legend of the names that kernels are compiled with, in every folder: B I J A K O are the sizes of the capsule form; a P
behind one (AP KP OP JP DP NP FP) is that size padded to a power of two; a T or C (BT JT PT IC) how many samples,
parents, positions or children a tile holds; N before one (NCH NB NG NT) how many tiles a program walks over. R rows of
a tile, F = A * O numbers of a pose, G children side by side, SP partial sums read at once, NS stages of the
pipeline, DT the dtype of matrix operands. EVEN: no mask is needed. H WD HO WO KS STRIDE
PAD: the map, its places and its window.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton.language as tl

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.plan import MOST_COLUMNS, Sizes, cdiv, padded, power_of_2

if TYPE_CHECKING:
    from capsroute.form.maps import Shape

__all__ = [
    "AttentionPlan", "ColumnPlan", "FewPlan", "LoopPlan", "ResidentPlan", "SharedPlan", "arranged_launch",
    "attention_plan", "both_launch", "column_plan", "contraction_plan", "few_launch", "few_plan", "fold_launch",
    "loop_plan", "outer_launch", "pooling_launch", "resident_plan", "row_launches", "shared_launch", "shared_plan",
    "shared_pose", "shared_step_launch", "split_pooling_launch", "totals_launch", "uniform_launch",
]  # fmt: skip

MOST_LOGITS = 4096  # of one child, that a program normalises at a time
TILE_COLUMNS = 128  # (parent, o) that one program holds where parents come in tiles
SHARED_TILE = 1 << 13  # logits of shared transforms that a program holds at once: [i, j]
STEP = 1 << 10  # numbers of a product with some transforms, for each warp: [j, a, k, o]
VOTES_TILE = 1 << 13  # numbers of stored votes that a program holds at once: [i, j, f]
SPLIT_TILE = 1 << 13  # the same, of a program that has some parents of a sample and all its children
COLUMN_TILE = 1 << 12  # the same, of a program that has some parents of a sample and walks over its children
MOST_VOTES = 1 << 12  # numbers of one child's votes, where they are stored
MOST_FIRST = 1 << 12  # numbers of all children of a sample that are summed for each parent anew
POOLING_TILE = 1 << 14  # numbers of children that a program of pooling holds at once

MOST_OUTER = 1 << 16  # products of rows, for each parent, that are made outside the matrix unit
FEW_ROWS = 8  # (sample, pose row) whose products are no work for the matrix unit

planned = functools.lru_cache(maxsize=256)


def _products(dtype: torch.dtype, multiply: str) -> dict[str, Any]:
    return {"DT": tl.bfloat16 if dtype == torch.bfloat16 else tl.float32, "PRECISION": multiply}


class LoopPlan(NamedTuple):
    """Launches of the fused routing loop."""

    uniform: Launch
    agreement: Launch  # of planes
    forward: Launch
    backward: Launch
    reduce: Launch
    splits: int  # the most partial sums that a pass leaves
    children: Launch
    transforms: Launch
    normalise: Launch | None  # over planes, where a program does not hold all parents
    sequences: dict[tuple, list]  # of compiled launches, see `launch.LaunchSequence`


@planned
def loop_plan(
    s: Sizes, dtype: torch.dtype, multiply: str, map: tuple[int, ...] | None = None, planes: bool = False,
    softmax: bool = True,
) -> LoopPlan:  # fmt: skip
    """All launches of the fused loop for one shape; `map` is where children are gathered from (`maps.children_at`).

    `planes`: parents come in tiles, even if one program would hold them. Without a `softmax`, with max-min, programs of
    the backward pass hold more.
    """
    half = dtype == torch.bfloat16
    pose = padded(s)
    shared = {**pose, **_products(dtype, multiply)}
    large = half and s.b * pose["AP"] >= 512

    held = s.j * pose["OP"] <= MOST_COLUMNS and not planes

    def passes(rows: int, stages: int, more: bool = False) -> Launch:
        if not held:
            return _planes(s, pose, {**shared, "MAP": map}, rows, stages)
        options, rows = {**shared, "J": s.j, "NS": stages, "MAP": map}, _rows(s, pose, rows)
        # Operands of 32 bits lie in memory in two orders.
        tiles = (stages + more) * 2 if half else (stages + 1 + more) * 4
        return _split(s, pose, rows, 32, 0, options, tiles)

    stages = 3 if large else 2
    forward, backward = passes(64 if large else 32, stages), passes(32, stages, not softmax)
    blocks = min(cdiv(s.j * s.o, 32), (MOST_COLUMNS if held else TILE_COLUMNS) // 32)
    across = cdiv(s.j * s.o, 32 * blocks)
    options = {**shared, "J": s.j, "NS": 3, "MAP": map, "CB": 32, "BLOCKS": blocks}
    uniform = _split(s, pose, max(64, pose["AP"]), 64, max(1, 128 // across), options)
    uniform = dataclasses.replace(uniform, grid=(*uniform.grid[:2], across))
    uniform.options.update(EVEN=uniform.options["EVEN"] and (s.j * s.o) % (32 * blocks) == 0)
    del uniform.options["OP"]
    slot = max(uniform.splits, forward.splits, backward.splits)
    return LoopPlan(
        uniform,
        forward if held else passes(64, 2),
        forward,
        backward,
        _reduce(s, slot),
        slot,
        _children(s, pose, shared, 64 if large else 32, 2),
        # A list has few rows, a map has many.
        _transforms(s, pose, {**shared, "MAP": map}, 32 if half else 16, split=map is not None),
        None if held else _normalise(s),
        {},
    )


def _reduce(s: Sizes, splits: int) -> Launch:
    """A warp for some parents of a sample; more warps where many splits wait for few, and more parents where those are
    thousands."""
    numbers = power_of_2(s.a * s.o)
    parents, rows, warps = max(1, 32 // numbers), 32 if numbers <= 64 else 4, 1
    if s.b * cdiv(s.j, parents) <= cost.CORES // 2 and splits > 64:
        parents, rows, warps = 1, max(4, min(power_of_2(splits), 4096 // numbers)), 4
    elif s.b * cdiv(s.j, parents) >= 1 << 13 and numbers <= 128:
        parents = min(power_of_2(s.j), 512 // numbers)
        rows, warps = max(1, min(power_of_2(splits), 2048 // (parents * numbers))), 4
    tile = {"J": s.j, "AO": s.a * s.o, "AOP": numbers, "JC": parents, "SP": rows, "num_warps": warps}
    return Launch((s.b, cdiv(s.j, parents), 1), 1, 1, {"SLOT": splits, **tile})


def _planes(s: Sizes, pose: dict, shared: dict, rows: int, stages: int = 2) -> Launch:
    """Agreement or weighted sum of a tile of parents; children are split over programs too."""
    parents = _parents_in_tile(s.j, min(s.j, max(1, TILE_COLUMNS // pose["OP"])))
    groups = cdiv(s.j, parents)
    options = {**shared, "JT": parents, "NS": stages}
    launch = _split(s, pose, _rows(s, pose, rows), 32, max(1, 1024 // groups), options)
    even = launch.options["EVEN"] and s.j % parents == 0
    return dataclasses.replace(launch, grid=(*launch.grid[:2], groups), options={**launch.options, "EVEN": even})


def _rows(s: Sizes, pose: dict, most: int) -> int:
    """Of a tile: (sample, pose row), a power of two; no more than there are."""
    return max(min(most, power_of_2(s.b) * pose["AP"]), 16, pose["AP"])


def _parents_in_tile(parents: int, most: int) -> int:
    """As many as fit, or somewhat fewer where they divide all of them: no mask is needed then."""
    return next((n for n in range(most, most // 2, -1) if parents % n == 0), most)


def _normalise(s: Sizes) -> Launch:
    """A program for each child and each tile of samples, which holds all parents or walks over them."""
    samples = min(32, power_of_2(s.b))
    while samples > 4 and s.i * cdiv(s.b, samples) < cost.CORES:
        samples //= 2
    parents = min(power_of_2(s.j), MOST_LOGITS // samples)
    tile = {"BN": samples, "JC": parents, "HELD": s.j <= parents, "num_warps": 4}
    return Launch((s.i, cdiv(s.b, samples), 1), 1, 1, tile)


def _split(s: Sizes, pose: dict, rows: int, columns: int, programs: int, options: dict, held: int = 0) -> Launch:
    """Children split over programs until there are enough of them, given that many rows and columns a tile.

    Or, with `held`, until they take the least time: bytes of each number of W that is held at once.
    """
    samples = rows // pose["AP"]
    children = max(4, columns // pose["KP"])
    tiles = cdiv(s.b, samples)
    chunks = cdiv(s.i, children)
    if held:
        across, warps = s.j * pose["OP"], max(1, rows // 16)
        held *= across * children * pose["KP"]
        programs = cost.programs_of_pass(s, tiles, chunks, across, warps, held)
    walk = min(chunks, cdiv(chunks * tiles, programs))
    splits = cdiv(chunks, walk)
    even = s.i == splits * walk * children and s.k == pose["KP"] and s.o == pose["OP"]
    options = {**options, "BT": samples, "IC": children, "EVEN": even, "num_warps": max(1, rows // 16)}
    return Launch((tiles, splits, 1), walk, splits, options)


def _children(s: Sizes, pose: dict, shared: dict, rows: int, subtiles: int) -> Launch:
    """The gradient by children: a program for each tile of samples and of children, and of parents where those are few.

    Of few rows a program has one sample and some children, outside the matrix unit.
    """
    if s.b <= 2 and s.b * s.a <= FEW_ROWS:
        k, o = power_of_2(s.k), power_of_2(s.o)
        parents = min(power_of_2(s.j), max(1, 4096 // (k * o)))
        children = min(power_of_2(s.i), max(1, 4096 // (parents * k * o)))
        tile = {"KP": k, "OP": o, "JT": parents, "IC": children, "BT": 1, "NSUB": 1, "EVEN": False, "NS": 1}
        warps = max(1, min(8, parents * children * k * o // 1024))
        return Launch((s.b, cdiv(s.i, children), 1), s.j, 1, {**shared, **tile, "MANY": False, "num_warps": warps})
    rows = max(rows, pose["AP"])
    children = max(4, rows // pose["KP"])
    samples = rows // pose["AP"]
    warps = max(1, rows // 16)
    if "x" in shared["PRECISION"] and pose["KP"] * pose["OP"] > 128:  # operands in parts leave the registers
        subtiles, warps = 1, 2 * warps
    grid = (cdiv(s.b, samples), cdiv(s.i, children * subtiles))
    walk = cdiv(s.j, max(1, min(s.j // 32, 4 * cost.CORES // (grid[0] * grid[1]))))
    even = s.i == grid[1] * children * subtiles and s.k == pose["KP"] and s.o == pose["OP"]
    tile = {"JT": 0, "BT": samples, "IC": children, "NSUB": subtiles, "EVEN": even, "NS": 3, "num_warps": warps}
    splits = cdiv(s.j, walk)
    return Launch((*grid, splits), walk, splits, {**shared, **tile, "MANY": walk > 128})


def _transforms(s: Sizes, pose: dict, shared: dict, rows: int, split: bool = False) -> Launch:
    """The gradient by transforms: a program for each tile of children and each parent walks over the batch, or part.

    Of few rows a program has one child and many parents, outside the matrix unit.
    """
    if s.b * s.a <= FEW_ROWS and shared["MAP"] is None:
        k, o = power_of_2(s.k), power_of_2(s.o)
        parents = min(power_of_2(s.j), max(1, 4096 // (k * o)))
        tile = {
            "KP": k,
            "OP": o,
            "JT": parents,
            "BT": 1,
            "IC": 1,
            "NS": 1,
            "num_warps": max(1, parents * k * o // 1024),
        }
        return Launch((s.i, cdiv(s.j, parents), 1), 1, 1, {**shared, **tile})
    rows = max(rows, pose["AP"])
    children = max(1, 256 // pose["KP"])
    samples = rows // pose["AP"]
    tiles, programs = cdiv(s.b, samples), cdiv(s.i, children) * s.j
    walk = cdiv(tiles, _parts(tiles, programs) if split else 1)
    splits = cdiv(tiles, walk)
    tile = {"JT": 0, "BT": samples, "IC": children, "NS": 3, "num_warps": 4}
    return Launch((cdiv(s.i, children), s.j, splits), walk, splits, {**shared, **tile})


@planned
def both_launch(s: Sizes) -> Launch | None:
    """Gradients by children and transforms at once, of few rows: a program for each child and some parents."""
    if s.b * s.a > FEW_ROWS:
        return None
    pose = {"A": s.a, "K": s.k, "O": s.o, "KP": power_of_2(s.k), "OP": power_of_2(s.o)}
    parents = min(power_of_2(s.j), max(1, 4096 // (pose["KP"] * pose["OP"])))
    warps = max(1, min(4, parents * pose["KP"] * pose["OP"] // 1024))
    splits = cdiv(s.j, parents)
    return Launch((s.i, splits, 1), 1, splits, {**pose, "JT": parents, "num_warps": warps})


def _parts(tiles: int, programs: int) -> int:
    """Into how many parts a batch of that many tiles is cut, so that there are about 1024 programs."""
    return max(1, min(tiles // 8, 1024 // programs))


class ContractionPlan(NamedTuple):
    """Launches of the four contractions alone."""

    agreement: Launch
    aggregate: Launch
    children: Launch
    transforms: Launch


@planned
def contraction_plan(s: Sizes, dtype: torch.dtype, multiply: str) -> ContractionPlan:
    pose = padded(s)
    shared = {**pose, **_products(dtype, multiply)}
    listed = {**shared, "MAP": None}
    return ContractionPlan(
        _planes(s, pose, listed, 64), _planes(s, pose, listed, 32), _children(s, pose, shared, 32, 2),
        _transforms(s, pose, listed, 32 if dtype == torch.bfloat16 else 16, split=True),
    )  # fmt: skip


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
    options = {**pose, **_products(dtype, multiply), "IC": children, "JC": some, "G": groups, "num_warps": warps}
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

    Of few children each program of the first step makes the sum itself.
    """

    walk: Launch
    step: Launch
    sums_first: bool
    sequences: dict[tuple, list]


@planned
def shared_plan(s: Sizes, dtype: torch.dtype, multiply: str) -> SharedPlan:
    """About two programs a core: small tiles of children, where there are few of them all in all.

    Of many parents a program takes one child after the other (`cost.walks_alone`), four at least: their partial sums
    are large.
    """
    pose = shared_pose(s)
    widest, product, core = max(pose["JP"], pose["FP"]), pose["JP"] * pose["FP"], pose["AP"] * pose["KP"]
    children = max(16, min(128, SHARED_TILE // widest, power_of_2(s.b * s.i // cost.CORES), power_of_2(s.i)))
    numbers = max(children * widest, product)
    warps = 16 if numbers > 8192 else 8 if numbers > 4096 or product > 1024 else 4
    tiles = cdiv(s.i, children)
    share = children * cdiv(tiles, max(1, 2 * cost.CORES // s.b))
    groups = max(1, min(children // 16, warps // (product // 128)))
    options = {"F": s.a * s.k, "FP": pose["FP"], "JP": pose["JP"], **_products(dtype, multiply), "IC": children}
    if cost.walks_alone(s):
        share, warps = max(4, cdiv(s.b * s.i, cost.CORES)), 16
        options.update(IC=1, DT=tl.float32, PRECISION="ieee")
    splits = cdiv(s.i, share)
    walk = Launch((s.b, splits, 1), share, splits, {**options, "G": groups, "num_warps": warps})
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
    return SharedPlan(walk, step, s.i * core <= MOST_FIRST, {})


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
    loop = Launch(
        (s.b, 1, 1),
        1,
        1,
        {**pose, "IC": tile, "num_warps": max(1, min(16 if s.b <= cost.CORES else 8, tile * each // 512))},
    )
    sizes: dict[str, Any] = {"A": s.a, "K": s.k, "O": s.o}
    # Programs that make the gradient of transforms walk over all rows: in eight steps, where those are many.
    rows = max(32, min(128, power_of_2(s.b * s.a) // 8))
    options = {**sizes, **_products(dtype, multiply), "KP": max(16, power_of_2(s.k)), "R": rows, "C": 64}
    options["num_warps"] = 8 if rows == 128 else 4
    tiles = cdiv(s.b * s.a, rows)
    gradients = Launch((s.i, tiles + cdiv(s.j * s.o, 64), 1), tiles, 1, options)
    return ResidentPlan(_votes(s), loop, gradients, _step(s, pose) if cost.splits_votes(s) else None, {})


def _votes(s: Sizes) -> Launch:
    """A program for a child, some rows (sample, pose row) and columns (parent, o)."""
    rows, columns = min(16, power_of_2(s.b * s.a)), min(256, power_of_2(s.j * s.o))
    options = {"A": s.a, "K": s.k, "O": s.o, "R": rows, "C": columns, "num_warps": max(1, rows * columns // 1024)}
    return Launch((s.i, cdiv(s.b * s.a, rows), cdiv(s.j * s.o, columns)), 1, 1, options)


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
    return ColumnPlan(_votes(s), step, _normalise(s._replace(b=1, i=s.b * s.i)), gradients, {})


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


class AttentionPlan(NamedTuple):
    """The launches of a step and of its derivative."""

    forward: Launch
    parents: Launch
    both: Launch
    fold: Launch


@planned
def attention_plan(s: Shape, dtype: torch.dtype, multiply: str) -> AttentionPlan:
    """16 rows a warp, one warp a program; children (or positions) are split until there are about 3000 programs."""
    pose = s.padded
    shared: dict[str, Any] = {
        **pose, **s.geometry, **_products(dtype, multiply), "J": s.j, "A": s.a, "K": s.k, "O": s.o,
        "PT": max(1, 16 // pose["AP"]), "NS": 3, "num_warps": 1,
    }  # fmt: skip
    tiles, groups = cdiv(s.positions, shared["PT"]), cdiv(s.children, pose["G"])
    walk = _walk(tiles, groups, shared)
    return AttentionPlan(walk, walk, _walk(groups, tiles, shared), fold_launch(s))


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
    reduce, numbers = _reduce(s, step.splits), power_of_2(s.a * s.o)
    if step.splits > 64:  # hundreds of them, at once
        rows = max(4, min(power_of_2(step.splits), (1 << 14) // numbers))
        tile = {"JC": 1, "SP": rows, "num_warps": max(1, min(16, rows * numbers // 512))}
        reduce = Launch((s.b, s.j, 1), 1, 1, {**reduce.options, **tile})
    return FewPlan(step, reduce, {})


@planned
def uniform_launch(s: Sizes, dtype: torch.dtype, multiply: str) -> Launch:
    """The plain sum of all votes of few samples: children are split until there are about 1024 programs."""
    pose = padded(s)
    blocks = min(cdiv(s.j * s.o, 32), TILE_COLUMNS // 32)
    across = cdiv(s.j * s.o, 32 * blocks)
    options = {**pose, **_products(dtype, multiply), "J": s.j, "NS": 3, "MAP": None, "CB": 32, "BLOCKS": blocks}
    launch = _split(s, pose, _rows(s, pose, 64), 64, max(1, 1024 // across), options)
    del launch.options["OP"]
    fits = s.i % (launch.splits * launch.tiles * launch.options["IC"]) == 0 and s.k == pose["KP"]
    launch.options.update(EVEN=fits and (s.j * s.o) % (32 * blocks) == 0)
    return dataclasses.replace(launch, grid=(*launch.grid[:2], across))


@planned
def totals_launch(parts: int, numbers: int) -> Launch:
    """A program for some of the numbers: as few as leave it all parts at once, up to 1024."""
    together = min(1024, power_of_2(parts))
    columns = max(4, 4096 // together)
    return Launch((cdiv(numbers, columns), 1, 1), 1, 1, {"SP": together, "C": columns, "num_warps": 4})


@planned
def arranged_launch(entries: int, j: int, m: int, o: int, jp: int, mp: int, op: int) -> Launch:
    """A program for every 1024 numbers of transforms or poses [e,j,m,o], padded."""
    options = {"J": j, "M": m, "O": o, "JP": jp, "MP": mp, "OP": op, "BLOCK": 1024, "num_warps": 4}
    return Launch((cdiv(entries * jp * mp * op, 1024), 1, 1), 1, 1, options)


def _walk(held: int, walked: int, options: dict) -> Launch:
    """A program for each thing held and each part of what is walked over."""
    walk = cdiv(walked, min(walked, cdiv(3000, held)))
    splits = cdiv(walked, walk)
    return Launch((held, splits, 1), walk, splits, options)


@planned
def fold_launch(s: Shape) -> Launch:
    """A program for every 1024 numbers of the map."""
    total = s.b * s.n * s.h * s.w * s.a * s.k
    return Launch((cdiv(total, 1024), 1, 1), 1, 1, {**s.geometry, "AK": s.a * s.k, "BLOCK": 1024, "num_warps": 4})


@planned
def pooling_launch(batch: int, children: int, width: int, iterations: int) -> Launch:
    """A program for each sample walks over its children."""
    columns = power_of_2(width)
    rows = min(power_of_2(children), max(1, POOLING_TILE // columns))
    warps = max(1, min(16, rows * columns // 512))
    options = {"D": width, "DP": columns, "IC": rows, "R": iterations, "num_warps": warps}
    return Launch((batch, 1, 1), cdiv(children, rows), 1, options)


@planned
def split_pooling_launch(batch: int, children: int, width: int, iterations: int) -> Launch | None:
    """Children of a sample split over programs, four to each core; None where a program for each sample will do."""
    columns = power_of_2(width)
    rows = min(power_of_2(children), max(1, 4096 // columns))
    tiles = cdiv(children, rows)
    walk = cdiv(tiles, min(tiles, 64, cdiv(4 * cost.CORES, batch)))
    splits = cdiv(tiles, walk)
    if splits == 1 or children * columns < 1 << 16 or 2 * batch > cost.CORES:
        return None
    options = {"D": width, "DP": columns, "IC": rows, "R": iterations, "SP": power_of_2(splits), "num_warps": 4}
    return Launch((batch, splits, 1), walk, splits, options)


@planned
def row_launches(rows: int, n: int) -> tuple[Launch, Launch]:
    """A program for every 2048 numbers of rows; and one that walks over many, where programs leave partial sums."""
    width = power_of_2(n)
    block = max(1, 2048 // width)
    options = {"N": n, "NP": width, "BLOCK": block, "num_warps": 4}
    tiles = cdiv(rows, block)
    walk = cdiv(tiles, 1024)
    return Launch((tiles, 1, 1), 1, 1, options), Launch((cdiv(tiles, walk), 1, 1), walk, cdiv(tiles, walk), options)
