"""Maps of capsules under a window: how kernels read patches that nobody cut out, and fold their gradients back.

A map is [b,n,a,k,h,w]; i = (capsule, window row, window column) counts the children of a patch, p = (b, y, x) the
patches. In memory it is [b,n,h,w,a,k] where the routing loop reads it and in the gradients that are made of it here.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import LaunchSequence, in_turn, kernel
from capsroute.form.launches.maps_and_rows import fold_launch
from capsroute.form.sizes import power_of_2
from capsroute.form.window import Window


class Shape(NamedTuple):
    """All that tile sizes depend on: index letters of the capsule form, and the map."""

    b: int
    n: int
    j: int
    a: int
    k: int
    o: int
    h: int
    w: int
    window: Window

    @property
    def places(self) -> tuple[int, ...]:
        return self.window.positions(self.h, self.w)

    @property
    def positions(self) -> int:
        return self.b * self.places[0] * self.places[1]

    @property
    def children(self) -> int:
        return self.n * self.window.kernel**2

    @property
    def covered(self) -> bool:
        """Whether the window covers the map whole: in memory its one patch is the map."""
        return self.h == self.w == self.window.kernel and self.window.padding == 0

    @property
    def geometry(self) -> dict[str, int]:
        """The map and the window in the kernels' words."""
        return {
            "H": self.h, "WD": self.w, "HO": self.places[0], "WO": self.places[1],
            "KS": self.window.kernel, "STRIDE": self.window.stride, "PAD": self.window.padding,
        }  # fmt: skip

    @property
    def padded(self) -> dict[str, int]:
        """What one pose, one group of children and the parents are padded to."""
        columns = power_of_2(self.k)
        return {
            "AP": power_of_2(self.a), "KP": columns, "OP": max(4, power_of_2(self.o)),
            "JP": max(4, power_of_2(self.j)), "G": max(1, 16 // columns),
        }  # fmt: skip


def shape_of(u: Tensor, W: Tensor, window: tuple[int, int, int]) -> Shape:
    """Of a map u [b,n,a,k,h,w] under a window; a list [b,n,a,k] is a map of one place."""
    b, n, a, k, h, w = u.shape if u.dim() == 6 else (*u.shape, 1, 1)
    return Shape(b, n, W.shape[1], a, k, W.shape[3], h, w, Window(*window))


def empty_gradient(u: Tensor) -> Tensor:
    """A gradient of the map u [b,n,a,k,h,w], in memory [b,n,h,w,a,k], in which order kernels read poses best, or of a
    list."""
    if u.dim() == 4:
        return u.new_empty(u.shape)
    b, n, a, k, h, w = u.shape
    return u.new_empty((b, n, h, w, a, k)).permute(0, 1, 4, 5, 2, 3)


@triton.jit
def children_at(u, b, a, i, k, I, rows, valid, A, K, MAP):
    """Numbers k of children i, in the columns of a tile, at patches b and pose rows a, in its rows; zero where invalid.

    MAP is None where u is a list [b,i,a,k], else the numbers of `Shape.geometry`: u is then a map [b,n,h,w,a,k], and
    zero beyond its edge.
    """
    mask = rows & valid[None, :]
    if MAP is None:
        at = u + b[:, None] * (I * A * K) + i[None, :] * (A * K) + a[:, None] * K + k[None, :]
    else:
        H: tl.constexpr = MAP[0]
        WD: tl.constexpr = MAP[1]
        HO: tl.constexpr = MAP[2]
        WO: tl.constexpr = MAP[3]
        KS: tl.constexpr = MAP[4]
        STRIDE: tl.constexpr = MAP[5]
        PAD: tl.constexpr = MAP[6]
        y, x = b // WO % HO * STRIDE - PAD, b % WO * STRIDE - PAD
        down, right = i // KS % KS, i % KS
        corner = ((b // (HO * WO)) * (I // (KS * KS)) * H + y) * WD + x
        step = (i // (KS * KS) * H + down) * WD + right
        at = u + corner[:, None] * (A * K) + step[None, :] * (A * K) + a[:, None] * K + k[None, :]
        if PAD > 0:
            yy, xx = y[:, None] + down[None, :], x[:, None] + right[None, :]
            mask = mask & (yy >= 0) & (yy < H) & (xx >= 0) & (xx < WD)
    return tl.load(at, mask=mask, other=0.0)


@kernel("TOTAL")
def fold(patches, out, TOTAL, N, AK: tl.constexpr, H: tl.constexpr, WD: tl.constexpr, HO: tl.constexpr,
         WO: tl.constexpr, KS: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program takes BLOCK numbers.

    out[b,n,y,x,ak] = the sum of what a child gets back from every patch that holds it, patches[(b,y',x'),i,ak].
    """
    in_turn()
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ak, place = at % AK, at // AK
    x, y = place % WD + PAD, place // WD % H + PAD
    n, b = place // (WD * H) % N, place // (WD * H) // N
    total = tl.zeros((BLOCK,), tl.float32)
    for offset in tl.static_range(KS * KS):
        up, left = y - offset // KS, x - offset % KS
        row, column = up // STRIDE, left // STRIDE
        there = (up >= 0) & (left >= 0) & (up % STRIDE == 0) & (left % STRIDE == 0) & (row < HO) & (column < WO)
        patch = (b * HO + row) * WO + column
        entry = (patch * N + n) * (KS * KS * AK) + offset * AK + ak
        total += tl.load(patches + entry, mask=there & (at < TOTAL), other=0.0).to(tl.float32)
    tl.store(out + at, total, mask=at < TOTAL)


def onto_map(run: LaunchSequence, patches: Tensor, s: Shape) -> Tensor:
    """The gradient of a map [b,n,a,k,h,w], from that of its patches [p,i,a,k]."""
    size = (s.b, s.n, s.h, s.w, s.a, s.k)
    if s.covered:
        out = patches.view(size)
    else:
        out = patches.new_empty(size)
        run(fold, fold_launch(s), patches, out, out.numel(), s.n)
    return out.permute(0, 1, 4, 5, 2, 3)
