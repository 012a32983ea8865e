"""What is not routed: patches folded onto their map, rows that are normalised, partial sums that are added up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsroute.form.launch import Launch
from capsroute.form.launches import planned
from capsroute.form.sizes import cdiv, power_of_2

if TYPE_CHECKING:
    from capsroute.form.maps import Shape


@planned
def fold_launch(s: Shape) -> Launch:
    """A program for every 1024 numbers of the map."""
    total = s.b * s.n * s.h * s.w * s.a * s.k
    return Launch((cdiv(total, 1024), 1, 1), 1, 1, {**s.geometry, "AK": s.a * s.k, "BLOCK": 1024, "num_warps": 4})


@planned
def row_launches(rows: int, n: int) -> tuple[Launch, Launch]:
    """A program for every 2048 numbers of rows; and one that walks over many, where programs leave partial sums."""
    width = power_of_2(n)
    block = max(1, 2048 // width)
    options = {"N": n, "NP": width, "BLOCK": block, "num_warps": 4}
    tiles = cdiv(rows, block)
    walk = cdiv(tiles, 1024)
    return Launch((tiles, 1, 1), 1, 1, options), Launch((cdiv(tiles, walk), 1, 1), walk, cdiv(tiles, walk), options)


@planned
def totals_launch(parts: int, numbers: int) -> Launch:
    """A program for some of the numbers: as few as leave it all parts at once, up to 1024."""
    together = min(1024, power_of_2(parts))
    columns = max(4, 4096 // together)
    return Launch((cdiv(numbers, columns), 1, 1), 1, 1, {"SP": together, "C": columns, "num_warps": 4})
