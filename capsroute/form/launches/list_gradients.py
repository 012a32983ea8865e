"""Gradients by children and by transforms, of lists and of maps read as lists."""

from capsroute.form import cost
from capsroute.form.launch import Launch
from capsroute.form.launches import planned
from capsroute.form.sizes import Sizes, cdiv, power_of_2

FEW_ROWS = 8  # (sample, pose row) whose products are no work for the matrix unit


def children_launch(s: Sizes, pose: dict, shared: dict, rows: int, subtiles: int) -> Launch:
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


def transforms_launch(s: Sizes, pose: dict, shared: dict, rows: int, split: bool = False) -> Launch:
    """The gradient by transforms: a program for each tile of children and each parent walks over the batch, or part.

    Of few rows a program has one child and many parents, outside the matrix unit.
    """
    if s.b * s.a <= FEW_ROWS and shared["MAP"] is None:
        k, o = power_of_2(s.k), power_of_2(s.o)
        parents = min(power_of_2(s.j), max(1, 4096 // (k * o)))
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
    parents = min(power_of_2(s.j), max(1, 4096 // (pose["KP"] * pose["OP"])))
    warps = max(1, min(4, parents * pose["KP"] * pose["OP"] // 1024))
    splits = cdiv(s.j, parents)
    return Launch((s.i, splits, 1), 1, splits, {**pose, "JT": parents, "num_warps": warps})
