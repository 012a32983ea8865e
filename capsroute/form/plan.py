"""Tile sizes, chosen once per shape from a few rules; nothing is tuned at run time.

The rules generalise sizes that were tuned on an H200 for 1152x8 -> 10x16; other shapes were timed once at most.

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
import os
from typing import NamedTuple

import torch
import triton.language as tl

from capsroute.form.launch import Launch

__all__ = [
    "LoopPlan",
    "Sizes",
    "children_launch",
    "loop_plan",
    "operand_dtype",
    "padded",
    "planes_launch",
    "precision",
    "sizes_of",
    "split_launch",
    "transforms_launch",
]

MOST_COLUMNS = 256  # (parent, o) whose accumulators one program of the loop holds
TILE_COLUMNS = 128  # as many where parents come in tiles

# Triton's interpreter multiplies no bfloat16.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own takes ten times as long, and is asked dozens of times a call."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << (n - 1).bit_length()


class Sizes(NamedTuple):
    """Index letters of the capsule form."""

    b: int
    i: int
    j: int
    a: int
    k: int
    o: int


def sizes_of(u: torch.Tensor, W: torch.Tensor) -> Sizes:
    return Sizes(u.shape[0], u.shape[1], W.shape[1], u.shape[2], u.shape[3], W.shape[3])


def operand_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """What matrix operands are rounded to: bfloat16 stays; float16, whose range gradients leave, is read as float32."""
    narrow = all(t.dtype == torch.bfloat16 for t in tensors) and not INTERPRETED
    return torch.bfloat16 if narrow else torch.float32


def precision() -> str:
    """How float32 operands are multiplied: as TF32 where torch is told to, else as exactly as float32 allows."""
    matmul = torch.backends.cuda.matmul
    if matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32:  # torch 2.6 to 2.8
        return "tf32"
    return _in_parts()


@functools.cache
def _in_parts() -> str:
    """Products of parts keep the digits of float32 on the matrix unit. Whole operands do not use it, and compile long.

    Three parts of bfloat16 are all of a number, and six of their products all but its last digit; Triton has them since
    3.6. Two parts of TF32, before that, lack two digits, which sums of a few terms show.
    """
    if torch.version.hip is not None:
        return "ieee"
    from triton.backends.nvidia.compiler import CUDAOptions

    # The interpreter multiplies exactly, whatever it is told, and is not to be told this.
    known = "bf16x6" in CUDAOptions.allowed_dot_input_precisions and not INTERPRETED
    return "bf16x6" if known else "tf32x3"


def padded(s: Sizes) -> dict[str, int]:
    """Sizes of one pose, and what tiles are padded to."""
    return {
        "A": s.a, "K": s.k, "O": s.o,
        "AP": power_of_2(s.a), "KP": max(2, power_of_2(s.k)), "OP": max(16, power_of_2(s.o)),
    }  # fmt: skip


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


@functools.lru_cache(maxsize=256)
def loop_plan(
    s: Sizes, dtype: torch.dtype, multiply: str, map: tuple[int, ...] | None = None, planes: bool = False
) -> LoopPlan:
    """All launches of the fused loop for one shape; `map` is where children are gathered from (`maps.children_at`).

    `planes`: parents come in tiles, even if one program would hold them.
    """
    half = dtype == torch.bfloat16
    pose = padded(s)
    shared = {**pose, "DT": tl.bfloat16 if half else tl.float32, "PRECISION": multiply}
    large = half and s.b * pose["AP"] >= 512

    held = s.j * pose["OP"] <= MOST_COLUMNS and not planes

    def passes(rows: int, stages: int) -> Launch:
        if not held:
            return planes_launch(s, pose, {**shared, "MAP": map}, rows, stages)
        options = {**shared, "J": s.j, "NS": stages, "MAP": map}
        return split_launch(s, pose, _rows(s, pose, rows), 32, 512, options)

    forward, backward = passes(64 if large else 32, 3 if large else 2), passes(32, 3 if large else 2)
    blocks = min(cdiv(s.j * s.o, 32), (MOST_COLUMNS if held else TILE_COLUMNS) // 32)
    across = cdiv(s.j * s.o, 32 * blocks)
    options = {**shared, "J": s.j, "NS": 3, "MAP": map, "CB": 32, "BLOCKS": blocks}
    uniform = split_launch(s, pose, max(64, pose["AP"]), 64, max(1, 128 // across), options)
    uniform = dataclasses.replace(uniform, grid=(*uniform.grid[:2], across))
    uniform.options.update(EVEN=uniform.options["EVEN"] and (s.j * s.o) % (32 * blocks) == 0)
    del uniform.options["OP"]
    aop = power_of_2(s.a * s.o)
    together = max(1, 32 // aop)
    slot = max(uniform.splits, forward.splits, backward.splits)
    reduce = {
        "SLOT": slot,
        "J": s.j,
        "AO": s.a * s.o,
        "AOP": aop,
        "JC": together,
        "SP": 32 if aop <= 64 else 4,
        "num_warps": 1,
    }
    return LoopPlan(
        uniform,
        forward if held else passes(64, 2),
        forward,
        backward,
        Launch((s.b, cdiv(s.j, together), 1), 1, 1, reduce),
        slot,
        children_launch(s, pose, shared, 64 if large else 32, 2),
        # A list has few rows, a map has many.
        transforms_launch(s, pose, {**shared, "MAP": map}, 32 if half else 16, split=map is not None),
        None if held else _normalise_launch(s),
        {},
    )


def planes_launch(s: Sizes, pose: dict, shared: dict, rows: int, stages: int = 2) -> Launch:
    """Agreement or weighted sum of a tile of parents; children are split over programs too."""
    parents = _parents_in_tile(s.j, min(s.j, max(1, TILE_COLUMNS // pose["OP"])))
    groups = cdiv(s.j, parents)
    options = {**shared, "JT": parents, "NS": stages}
    launch = split_launch(s, pose, _rows(s, pose, rows), 32, max(1, 1024 // groups), options)
    even = launch.options["EVEN"] and s.j % parents == 0
    return dataclasses.replace(launch, grid=(*launch.grid[:2], groups), options={**launch.options, "EVEN": even})


def _rows(s: Sizes, pose: dict, most: int) -> int:
    """Of a tile: (sample, pose row), a power of two; no more than there are."""
    return max(min(most, power_of_2(s.b) * pose["AP"]), 16, pose["AP"])


def _parents_in_tile(parents: int, most: int) -> int:
    """As many as fit, or somewhat fewer where they divide all of them: no mask is needed then."""
    return next((n for n in range(most, most // 2, -1) if parents % n == 0), most)


def _normalise_launch(s: Sizes) -> Launch:
    """A program for each child and each tile of samples walks over parents."""
    samples = min(32, power_of_2(s.b))
    tile = {"BN": samples, "JC": min(power_of_2(s.j), 4096 // samples), "num_warps": 4}
    return Launch((s.i, cdiv(s.b, samples), 1), 1, 1, tile)


def split_launch(s: Sizes, pose: dict, rows: int, columns: int, programs: int, options: dict) -> Launch:
    """Children split over programs until there are enough of them, given that many rows and columns a tile."""
    samples = rows // pose["AP"]
    children = max(4, columns // pose["KP"])
    tiles = cdiv(s.b, samples)
    chunks = cdiv(s.i, children)
    walk = min(chunks, cdiv(chunks * tiles, programs))
    splits = cdiv(chunks, walk)
    even = s.i == splits * walk * children and s.k == pose["KP"] and s.o == pose["OP"]
    options = {**options, "BT": samples, "IC": children, "EVEN": even, "num_warps": max(1, rows // 16)}
    return Launch((tiles, splits, 1), walk, splits, options)


def children_launch(s: Sizes, pose: dict, shared: dict, rows: int, subtiles: int) -> Launch:
    """The gradient by children: a program for each tile of samples and of children."""
    rows = max(rows, pose["AP"])
    children = max(4, rows // pose["KP"])
    samples = rows // pose["AP"]
    warps = max(1, rows // 16)
    if "x" in shared["PRECISION"] and pose["KP"] * pose["OP"] > 128:  # operands in parts leave the registers
        subtiles, warps = 1, 2 * warps
    grid = (cdiv(s.b, samples), cdiv(s.i, children * subtiles), 1)
    even = s.i == grid[1] * children * subtiles and s.k == pose["KP"] and s.o == pose["OP"]
    tile = {"BT": samples, "IC": children, "NSUB": subtiles, "EVEN": even, "NS": 3, "num_warps": warps}
    return Launch(grid, 1, 1, {**shared, **tile, "MANY": s.j > 128})


def transforms_launch(s: Sizes, pose: dict, shared: dict, rows: int, split: bool = False) -> Launch:
    """The gradient by transforms: a program for each tile of children and each parent walks over the batch, or part."""
    rows = max(rows, pose["AP"])
    children = max(1, 256 // pose["KP"])
    samples = rows // pose["AP"]
    tiles, programs = cdiv(s.b, samples), cdiv(s.i, children) * s.j
    walk = cdiv(tiles, splits_for(tiles, programs) if split else 1)
    splits = cdiv(tiles, walk)
    tile = {"BT": samples, "IC": children, "NS": 3, "num_warps": 4}
    return Launch((cdiv(s.i, children), s.j, splits), walk, splits, {**shared, **tile})


def splits_for(tiles: int, programs: int) -> int:
    """Into how many parts a batch of that many tiles is cut, so that there are about 1024 programs."""
    return max(1, min(tiles // 8, 1024 // programs))
