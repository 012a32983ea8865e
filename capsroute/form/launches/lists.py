"""Lists of capsules, and maps read as lists: passes of the fused routing loop, the four contractions, and gradients.

- 16 rows a warp; two warps a program hold 32 rows, which is what registers allow next to ten accumulators.
- A grid of about 512 programs in the passes, 128 in the uniform pass: children are split until there are as many.
"""

import dataclasses
from typing import NamedTuple

import torch

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned, products
from capsroute.form.sizes import GRID_ROWS, MOST_COLUMNS, Sizes, cdiv, padded, power_of_2

MOST_LOGITS = 4096  # of one child, that a program normalises at a time
TILE_COLUMNS = 128  # (parent, o) that one program holds where parents come in tiles
FEW_ROWS = 8  # (sample, pose row) whose products are no work for the matrix unit


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
    shared = {**pose, **products(dtype, multiply)}
    large = half and s.b * pose["AP"] >= 512

    held = s.j * pose["OP"] <= MOST_COLUMNS and not planes
    tall = pose["AP"] >= 4 and s.b * pose["AP"] >= 512  # matrix poses of many samples

    def passes(rows: int, stages: int, more: bool = False) -> Launch:
        if not held:
            return _planes(s, pose, {**shared, "MAP": map}, 64 if tall else rows, 3 if half or tall else stages)
        options, rows = {**shared, "J": s.j, "NS": stages, "MAP": map}, _rows(s, pose, rows)
        # Operands of 32 bits lie in memory in two orders.
        tiles = (stages + more) * 2 if half else (stages + 1 + more) * 4
        return _split(s, pose, rows, 32, 0, options, tiles)

    stages = 3 if large else 2
    forward, backward = passes(64 if large else 32, stages), passes(32, stages, not softmax)
    columns = MOST_COLUMNS if held else TILE_COLUMNS
    uniform = _uniform(s, {**shared, "MAP": map}, max(64, pose["AP"]), 128, columns, s.o == pose["OP"])
    slot = max(uniform.splits, forward.splits, backward.splits)
    return LoopPlan(
        uniform,
        forward if held else passes(64, 2),
        forward,
        backward,
        reduce_launch(s, slot),
        slot,
        _children_launch(s, pose, shared, half),
        # A list has few rows, a map has many.
        _transforms_launch(s, pose, {**shared, "MAP": map}, 32 if half else 16, split=map is not None),
        None if held else normalise_launch(s),
        {},
    )


class ContractionPlan(NamedTuple):
    """Launches of the four contractions alone."""

    agreement: Launch
    aggregate: Launch
    children: Launch
    transforms: Launch


@planned
def contraction_plan(s: Sizes, dtype: torch.dtype, multiply: str) -> ContractionPlan:
    pose = padded(s)
    shared = {**pose, **products(dtype, multiply)}
    listed = {**shared, "MAP": None}
    return ContractionPlan(
        _planes(s, pose, listed, 64), _planes(s, pose, listed, 32),
        _children_launch(s, pose, shared, dtype == torch.bfloat16),
        _transforms_launch(s, pose, listed, 32 if dtype == torch.bfloat16 else 16, split=True),
    )  # fmt: skip


@planned
def uniform_launch(s: Sizes, dtype: torch.dtype, multiply: str) -> Launch:
    """The plain sum of all votes of few samples: children are split until there are about 1024 programs."""
    pose = padded(s)
    shared = {**pose, **products(dtype, multiply), "MAP": None}
    return _uniform(s, shared, _rows(s, pose, 64), 1024, TILE_COLUMNS)


def _uniform(s: Sizes, shared: dict, rows: int, programs: int, columns: int, even: bool = True) -> Launch:
    """Columns (parent, o) are one axis, in blocks of 32, so many of which a program holds."""
    blocks = min(cdiv(s.j * s.o, 32), columns // 32)
    across = cdiv(s.j * s.o, 32 * blocks)
    launch = _split(s, shared, rows, 64, max(1, programs // across), shared)
    tile = {name: value for name, value in launch.options.items() if name != "OP"}
    fits = s.i == launch.splits * launch.tiles * tile["IC"] and s.k == shared["KP"] and (s.j * s.o) % (32 * blocks) == 0
    tile |= {"J": s.j, "NS": 3, "CB": 32, "BLOCKS": blocks, "EVEN": even and fits}
    return dataclasses.replace(launch, grid=(*launch.grid[:2], across), options=tile)


def reduce_launch(s: Sizes, splits: int) -> Launch:
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


def normalise_launch(s: Sizes) -> Launch:
    """A program for each child and each tile of samples, which holds all parents or walks over them."""
    samples = min(32, power_of_2(s.b))
    while samples > 4 and s.i * cdiv(s.b, samples) < cost.CORES:
        samples //= 2
    parents = min(power_of_2(s.j), MOST_LOGITS // samples)
    tile = {"BN": samples, "JC": parents, "HELD": s.j <= parents, "num_warps": 4}
    return Launch((s.i, cdiv(s.b, samples), 1), 1, 1, tile)


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


def _children_launch(s: Sizes, pose: dict, shared: dict, half: bool) -> Launch:
    """The gradient by children: a program for each tile of samples and of children, and of parents where those are few.

    Two tiles of 32 rows, or in half precision one of 64: of 6x6 poses 229 us for 449, of 16 to 32 74 for 110, of 8 to
    16 the same. In TF32 one of 64 takes longer: a step of 8 to 16 by 1 to 5 %, of 6x6 poses by 10 %.

    Of few rows a program has one sample and some children, outside the matrix unit.
    """
    if s.b <= 2 and s.b * s.a <= FEW_ROWS:
        k, o = power_of_2(s.k), power_of_2(s.o)
        parents = _few_parents(s)
        children = min(power_of_2(s.i), max(1, 4096 // (parents * k * o)))
        tile = {"KP": k, "OP": o, "JT": parents, "IC": children, "BT": 1, "NSUB": 1, "EVEN": False, "NS": 1}
        warps = max(1, min(8, parents * children * k * o // 1024))
        grid, tile["ACROSS"] = _rows_of_children(s.b, cdiv(s.i, children))
        return Launch((*grid, 1), s.j, 1, {**shared, **tile, "MANY": False, "num_warps": warps})
    rows, subtiles = (64, 1) if half and s.b * pose["AP"] >= 64 else (max(32, pose["AP"]), 2)
    children = max(4, rows // pose["KP"])
    samples = rows // pose["AP"]
    warps = max(1, rows // 16)
    if "x" in shared["PRECISION"] and pose["KP"] * pose["OP"] > 128:  # operands in parts leave the registers
        subtiles, warps = 1, 2 * warps
    grid = (cdiv(s.b, samples), cdiv(s.i, children * subtiles))
    walk = cdiv(s.j, max(1, min(s.j // 32, 4 * cost.CORES // (grid[0] * grid[1]))))
    even = s.i == grid[1] * children * subtiles and s.k == pose["KP"] and s.o == pose["OP"]
    tile = {"JT": 0, "BT": samples, "IC": children, "NSUB": subtiles, "EVEN": even, "NS": 3, "num_warps": warps}
    splits, (grid, tile["ACROSS"]) = cdiv(s.j, walk), _rows_of_children(*grid)
    return Launch((*grid, splits), walk, splits, {**shared, **tile, "MANY": walk > 128})


def _rows_of_children(samples: int, children: int) -> tuple[tuple[int, int], int]:
    """The grid of so many tiles of both; where it has too few rows, one row, and how many tiles of samples follow on
    each other there."""
    return ((samples, children), 0) if children <= GRID_ROWS else ((samples * children, 1), samples)


def _transforms_launch(s: Sizes, pose: dict, shared: dict, rows: int, split: bool) -> Launch:
    """The gradient by transforms: a program for each tile of children and each parent walks over the batch, or part.

    Of few rows a program has one child and many parents, outside the matrix unit.
    """
    if s.b * s.a <= FEW_ROWS and shared["MAP"] is None:
        k, o = power_of_2(s.k), power_of_2(s.o)
        parents = _few_parents(s)
        tile = {"KP": k, "OP": o, "JT": parents, "BT": 1, "IC": 1, "NS": 1}
        warps = max(1, parents * k * o // 1024)
        return Launch((s.i, cdiv(s.j, parents), 1), 1, 1, {**shared, **tile, "num_warps": warps})
    rows = max(rows, pose["AP"])
    children = max(1, 256 // pose["KP"])
    samples = rows // pose["AP"]
    tiles, programs = cdiv(s.b, samples), cdiv(s.i, children) * s.j
    walk = cdiv(tiles, max(1, min(tiles // 8, 1024 // programs)) if split else 1)  # about 1024 programs
    splits = cdiv(tiles, walk)
    tile = {"JT": 0, "BT": samples, "IC": children, "NS": 3, "num_warps": 4}
    return Launch((cdiv(s.i, children), s.j, splits), walk, splits, {**shared, **tile})


@planned
def both_launch(s: Sizes) -> Launch | None:
    """Gradients by children and transforms at once, of few rows: a program for each child and some parents."""
    if s.b * s.a > FEW_ROWS:
        return None
    pose = {"A": s.a, "K": s.k, "O": s.o, "KP": power_of_2(s.k), "OP": power_of_2(s.o)}
    parents = _few_parents(s)
    warps = max(1, min(4, parents * pose["KP"] * pose["OP"] // 1024))
    splits = cdiv(s.j, parents)
    return Launch((s.i, splits, 1), 1, splits, {**pose, "JT": parents, "num_warps": warps})


def _few_parents(s: Sizes) -> int:
    """Whose transforms of one child a program holds whole, outside the matrix unit."""
    return min(power_of_2(s.j), max(1, 4096 // (power_of_2(s.k) * power_of_2(s.o))))
