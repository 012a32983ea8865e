"""Tiles of the Gaussian passes, and where the passes apply. A tile is IC children (or samples) by JT parents."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from capsroute.form.contractions.kernels import WIDE, size_reasons
from capsroute.form.launch import Launch
from capsroute.form.plan import Sizes, cdiv, power_of_2, sizes_of

__all__ = ["MOST_PARENTS", "gaussian_launch", "gaussian_reasons", "step_reasons"]

# Kernel: most parents in a tile, children in it, programs to aim at; timed on an H200. One warp holds 64 parents.
TILES = {
    "quadratic": (64, 2, 4096),
    "weighted_moments": (32, 1, 2048),
    "power_sums": (32, 2, 2048),
    "vote_gradients": (32, 1, 2048),
}
MOST_PARENTS = 512
MOST_PRODUCTS = 128  # of a vote; code is unrolled over them, and twice as many take many minutes to compile


@functools.lru_cache(maxsize=256)
def gaussian_launch(kernel: str, s: Sizes, shared: bool, whole: bool = False) -> Launch:
    """Children are split over programs until there are enough; `whole`: one tile holds all parents.

    The gradients of per-child transforms hold a child and walk over samples instead.
    """
    most, children, programs = TILES[kernel]
    parents = power_of_2(s.j) if whole else min(power_of_2(s.j), most)
    children = max(children, 32 // parents)
    held, walked = (s.b, s.i) if shared or kernel != "vote_gradients" else (s.i, s.b)
    chunks, tiles = cdiv(walked, children), cdiv(s.j, parents)
    walk = min(chunks, cdiv(chunks * held * tiles, programs))
    splits = cdiv(chunks, walk)
    options = {"A": s.a, "K": s.k, "O": s.o, "IC": children, "JT": parents, "SHARED": shared}
    return Launch((held, splits, tiles), walk, splits, {**options, "num_warps": max(1, parents // 64)})


def gaussian_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why the kernels of densities and moments do not apply, if anything."""
    s, found = sizes_of(u, W), size_reasons(u.shape, W.shape)
    if torch.float64 in (u.dtype, W.dtype):
        found.append(WIDE)
    if s.b * s.i * s.j >= 1 << 31:
        found.append("children times parents are 2^31 or more, beyond the kernels' 32-bit offsets")
    if max(s.a * s.k, s.a * s.o) > 32 or s.a * s.k * s.o > MOST_PRODUCTS:
        found.append(
            f"poses are held in registers: at most 32 numbers and {MOST_PRODUCTS} products a vote, "
            f"here {s.a} x {s.k} -> {s.a} x {s.o}"
        )
    return found


def step_reasons(u: Tensor, W: Tensor) -> list[str]:
    """Why density, softmax over parents and moments are not one operator, if anything."""
    found = gaussian_reasons(u, W)
    if W.shape[1] > MOST_PARENTS:
        found.append(f"the softmax over parents holds all of them: at most {MOST_PARENTS}, here {W.shape[1]}")
    return found
