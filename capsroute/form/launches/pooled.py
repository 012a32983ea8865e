"""Routing pooling: a program for each sample, or several."""

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned
from capsroute.form.sizes import cdiv, power_of_2

POOLING_TILE = 1 << 14  # numbers of children that a program of pooling holds at once


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
