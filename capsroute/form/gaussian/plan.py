"""Tiles of the Gaussian passes, and where the passes apply. A tile is IC children (or samples) by JT parents."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from capsroute.form.contractions.kernels import WIDE, size_reasons
from capsroute.form.cost import MOST_NUMBERS, stores_votes
from capsroute.form.launch import Launch
from capsroute.form.plan import Sizes, cdiv, power_of_2, sizes_of

__all__ = ["MOST_PARENTS", "gaussian_launch", "gaussian_reasons", "reads_votes", "step_reasons"]

# Kernel: most parents in a tile, children in it, programs to aim at; timed on an H200. One warp holds 64 parents.
TILES = {
    "quadratic": (64, 2, 4096),
    "weighted_moments": (32, 1, 2048),
    "power_sums": (32, 2, 2048),
    "vote_gradients": (32, 1, 2048),
    "stored_gradients": (32, 1, 8192),
}
STORED_PROGRAMS = 8192  # of passes that read votes, which wait for memory
MOST_PARENTS = 1024
MOST_PRODUCTS = 128  # of a vote; code is unrolled over them, and twice as many take many minutes to compile


@functools.lru_cache(maxsize=256)
def gaussian_launch(kernel: str, s: Sizes, shared: bool, whole: bool = False, stored: bool = False) -> Launch:
    """Children are split over programs until there are enough; `whole`: one tile holds all parents.

    The gradients of per-child transforms hold a child and walk over samples instead.
    """
    most, children, programs = TILES[kernel]
    if stored:
        children, programs = 1, STORED_PROGRAMS
    parents = power_of_2(s.j) if whole else min(power_of_2(s.j), most)
    children = max(children, 32 // parents)
    held, walked = (s.b, s.i) if shared or kernel != "vote_gradients" else (s.i, s.b)
    chunks, tiles = cdiv(walked, children), cdiv(s.j, parents)
    walk = min(chunks, cdiv(chunks * held * tiles, programs))
    splits = cdiv(chunks, walk)
    options = {"A": s.a, "K": s.k, "O": s.o, "IC": children, "JT": parents, "SHARED": shared}
    if kernel in ("quadratic", "weighted_moments"):
        options["STORED"] = stored
    if kernel == "stored_gradients":
        options["GROUPS"] = cdiv(s.a * s.o, 16)
        tiles *= options["GROUPS"]
    lanes = 32 if stored and s.a * s.o > 16 else 64
    return Launch((held, splits, tiles), walk, splits, {**options, "num_warps": max(1, parents // lanes)})


def fits_registers(s: Sizes) -> bool:
    """Whether votes can be made in registers, by code that compiles in time."""
    return max(s.a * s.k, s.a * s.o) <= 32 and s.a * s.k * s.o <= MOST_PRODUCTS


def reads_votes(s: Sizes, shared: bool) -> bool:
    """Whether passes read votes that are stored rather than make them."""
    return stores_votes(s, shared, fits_registers(s))


def gaussian_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why the kernels of densities and moments do not apply, if anything."""
    s, found = sizes_of(u, W), size_reasons(u.shape, W.shape)
    if torch.float64 in (u.dtype, W.dtype):
        found.append(WIDE)
    if s.b * s.i * s.j >= 1 << 31:
        found.append("children times parents are 2^31 or more, beyond the kernels' 32-bit offsets")
    if not fits_registers(s) and s.a * s.o > MOST_NUMBERS:
        found.append(
            f"poses are held in registers: at most 32 numbers and {MOST_PRODUCTS} products a vote, or {MOST_NUMBERS} "
            f"numbers of votes that are stored, here {s.a} x {s.k} -> {s.a} x {s.o}"
        )
    return found


def step_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why density, softmax over parents and moments are not one operator, if anything."""
    found = gaussian_reasons(u, W)
    if W.shape[1] > MOST_PARENTS:
        found.append(f"the softmax over parents holds all of them: at most {MOST_PARENTS}, here {W.shape[1]}")
    return found


PLACES = 2048  # numbers of a tile of stored votes, or one child's where that is more
NUMBERS = 8  # of it that a thread holds
STAGES = 2  # of the loads of votes
PROGRAMS = 264  # two for each of an H200's processors
MOST_HELD = 8192  # numbers of all parents
MOST_SHARES = 32  # of one sample's children, each a program
PRODUCT_ROWS, PRODUCT_COLUMNS, PRODUCT_STAGES = 64, 64, 3  # of a tile of the products before and after
MOST_STORED = 1 << 27  # bytes of votes at once, where transforms are shared


@functools.lru_cache(maxsize=256)
def resident_launch(s: Sizes, kernel: str, iterations: int = 0) -> Launch:
    """A program holds a sample and a share of its children; the last pass, which holds most, a tile of parents."""
    parents, pose = power_of_2(s.j), power_of_2(s.a * s.o)
    if kernel == "last_gradients":
        parents = min(parents, max(1, PLACES // pose))
    children = min(power_of_2(s.i), max(1, PLACES // (parents * pose)))
    size, tiles = children * parents * pose, cdiv(s.j, parents)
    chunks = cdiv(s.i, children)
    walk = cdiv(chunks, max(1, min(chunks, PROGRAMS // (s.b * tiles), MOST_SHARES)))
    splits = cdiv(chunks, walk)
    options = {"F": s.a * s.o, "FP": pose, "IC": children, "JT": parents}
    if kernel != "believe":
        options["NS"] = STAGES
    if iterations:
        options["T"] = iterations
    options["num_warps"] = min(16, max(1, size // (32 * NUMBERS)))
    return Launch((s.b, 1 if kernel == "believe" else splits, tiles), walk, splits, options)


def samples_at_once(s: Sizes, shared: bool) -> int:
    """Whose votes are stored together. Gradients of shared transforms are small enough to be added up."""
    return max(1, min(s.b, MOST_STORED // (s.i * s.j * s.a * s.o * 4))) if shared else s.b


@functools.lru_cache(maxsize=256)
def product_launches(s: Sizes, shared: bool) -> tuple[Launch, Launch, Launch]:
    """Votes made, their gradient by children, and by transforms."""
    groups, rows, columns = (1, s.b * s.i * s.a, s.j * s.o) if shared else (s.i, s.b * s.a, s.j * s.o)
    tall, wide = (min(most, max(16, power_of_2(n))) for most, n in ((PRODUCT_ROWS, rows), (PRODUCT_COLUMNS, columns)))
    down, across = cdiv(rows, tall), cdiv(columns, wide)
    options = {"A": s.a, "K": s.k, "KP": max(16, power_of_2(s.k)), "O": s.o, "RT": tall, "CT": wide}
    options |= {"num_warps": 4, "num_stages": PRODUCT_STAGES}
    # Rows of a batch that all go into one set of transforms are split over programs.
    walk = cdiv(down, max(1, min(down // 8, PROGRAMS // (groups * across))))
    return (
        Launch((groups, across, down), 1, 1, options),
        Launch((groups, down, 1), across, 1, options),
        Launch((groups, across, cdiv(down, walk)), walk, cdiv(down, walk), options),
    )


def loop_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why all iterations over stored votes are not one operator, if anything."""
    s, found = sizes_of(u, W), size_reasons(u.shape, W.shape)
    if torch.float64 in (u.dtype, W.dtype):
        found.append(WIDE)
    if s.b * s.i * s.j >= 1 << 31 or s.i * s.j * s.a * s.o >= 1 << 31:
        found.append("children times parents are 2^31 or more, beyond the kernels' 32-bit offsets")
    size = power_of_2(s.j) * power_of_2(s.a * s.o)
    if size > MOST_HELD:
        found.append(f"parents are held in registers: at most {MOST_HELD} numbers of padded poses, here {size}")
    return found
