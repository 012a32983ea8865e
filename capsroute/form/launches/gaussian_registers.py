"""EM and Heinsen routing of large layers, whose votes are made in registers; and the betas of their children."""

from capsroute.form.cost import CORES
from capsroute.form.launch import Launch
from capsroute.form.launches import planned
from capsroute.form.launches.gaussian_votes import grid
from capsroute.form.sizes import Sizes, cdiv, power_of_2

# Kernel: most parents in a tile, children in it, programs to aim at; timed on an H200. One warp holds 64 parents.
TILES = {"quadratic": (64, 2, 4096), "weighted_moments": (32, 1, 2048), "vote_gradients": (32, 1, 2048)}
HELD = 4096  # numbers (sample, child, parent) that a program works on at once


@planned
def votes_walk(kernel: str, s: Sizes, whole: bool = False) -> Launch:
    """Children are split over programs until there are enough; `whole`: one tile holds all parents."""
    most, children, programs = TILES[kernel]
    parents = power_of_2(s.j) if whole else min(power_of_2(s.j), most)
    children *= 64 // parents if parents < 32 else 1  # a lane with one vote alone would wait for it
    chunks, tiles = cdiv(s.i, children), cdiv(s.j, parents)
    steps = min(chunks, cdiv(chunks * s.b * tiles, programs))
    splits = cdiv(chunks, steps)
    options = {"A": s.a, "K": s.k, "O": s.o, "IC": children, "JT": parents, "num_warps": max(1, parents // 64)}
    return Launch((s.b, splits, tiles), steps, splits, options)


def parts_launch(b: int, rows: int, j: int, splits: int) -> Launch:
    return grid((b, 1), (rows, 1), (j, 32), F=rows, SP=32 if splits > 16 else 16, JT=32, num_warps=4)


def table_launch(b: int, rows: int, j: int) -> Launch:
    return grid((b, 1), (j, 32), F=rows, FP=power_of_2(rows), JT=32, num_warps=4)


@planned
def betas_tile(b: int, i: int, j: int) -> dict[str, int]:
    parents, samples = min(64, power_of_2(j)), min(4, power_of_2(b))
    children = min(power_of_2(i), HELD // (parents * samples))
    return {"BT": samples, "IC": children, "JT": parents, "num_warps": 4}


@planned
def betas_walk(b: int, i: int, j: int) -> Launch:
    """Children are split over programs until there are enough of those."""
    tile = betas_tile(b, i, j)
    groups, tiles, chunks = cdiv(b, tile["BT"]), cdiv(j, tile["JT"]), cdiv(i, tile["IC"])
    steps = cdiv(chunks, max(1, min(chunks, 2 * CORES // (groups * tiles))))
    return Launch((groups, cdiv(chunks, steps), tiles), steps, cdiv(chunks, steps), tile)
