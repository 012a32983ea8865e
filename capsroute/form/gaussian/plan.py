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
