"""EM and Heinsen routing over stored votes. A tile is IC children by JT parents by all of a pose, FP numbers.

At the end those of large layers, whose votes are made in registers, and the betas of their children.
"""

import torch

from capsroute.form.cost import CORES
from capsroute.form.launch import Launch
from capsroute.form.launches import planned
from capsroute.form.sizes import GRID_ROWS, Sizes, cdiv, power_of_2

NUMBERS = 32  # of a tile of votes that a thread holds
LANES = 8  # of them belong to one child, where parents are many enough
STAGES = 3  # of the loads of votes
LEFT = 3  # numbers that a share of the children leaves for each of a parent's
WARPS = 12, 16  # on each core: the fewest that nearly fill it, since of more each thread has fewer registers
LAST_WARPS = 8  # for the last pass, where threads hold what three iterations left
FIRST_WARPS = 24  # for the first one
NEARLY = 0.8  # of the places for warps
REGISTERS = 1 << 14  # of a quarter of a core, whose warps have them all
SPREAD = 1 << 19, 1 << 11  # votes of all samples, and numbers of one parent's: so few that a thread holds fewer, too
SPREAD_NUMBERS, SPREAD_LANES, SPREAD_CHILDREN = 8, 4, 2
LEAST_CHILDREN = 8  # of a sample for a program, while all shares can be read at once; four times as many beyond
MOST_HELD = 4096  # numbers of all parents
COLUMN = 128  # numbers of a tile of them, where they are more, for a warp; up to four times as many for a program
LONG = 64  # children, of which a program over few columns reads many at a time
TOGETHER = 4  # children of each row of its tiles whose moments are taken together
ROW = 4096  # parents of a child that a program over a plane holds
FIRST_HELD = 128  # of them, for the first pass
LAST_HELD = 2048  # of a tile of them, for the last pass, which holds what three iterations left
AT_ONCE = 8192  # numbers of the shares of one parent that a program reads at once
WHOLE = 4096  # votes of a sample, padded, over which a program makes all iterations: two tiles
FEW = 512  # numbers of what others have left that a program reads at once, one warp for every 128 of them
MADE = 2048  # votes that a program makes, where there are many
FEW_ROWS = 8  # of a product, for which a matrix unit would work on nothing but padding
MOST_STORED = 1 << 27  # bytes of votes at once
# Kernel: most parents in a tile, children in it, programs to aim at; timed on an H200. One warp holds 64 parents.
REGISTER_TILES = {"quadratic": (64, 2, 4096), "weighted_moments": (32, 1, 2048), "vote_gradients": (32, 1, 2048)}
BETAS_HELD = 4096  # numbers (sample, child, parent) that a program works on at once


@planned
def grid(*axes: tuple[int, int], **options: int) -> Launch:
    """A program for every tile of up to three axes, each given as its size and how much of it a tile holds."""
    programs = [cdiv(size, tile) for size, tile in axes]
    return Launch((*programs, *[1] * (3 - len(axes))), 1, 1, options)  # type: ignore[arg-type]


@planned
def walk(s: Sizes, tiled: bool = False, places: tuple[int, ...] = WARPS[:1], **options: int) -> Launch:
    """A program holds all parents of a sample, or a tile of them, and walks over a share of its children.

    `places` for warps there are on a core: programs are as many as run at once.
    """
    pose = power_of_2(s.a * s.o)
    numbers, lanes, least = NUMBERS, LANES, LEAST_CHILDREN
    if _spread(s):
        numbers, lanes, least, places = SPREAD_NUMBERS, SPREAD_LANES, SPREAD_CHILDREN, WARPS[:1]
    parents = min(power_of_2(s.j), max(1, LAST_HELD // pose)) if tiled else power_of_2(s.j)
    warps = min(16, max(1, parents * pose // (32 * lanes)))
    children = min(power_of_2(s.i), max(1, 32 * warps * numbers // (parents * pose)))
    tiles, chunks = cdiv(s.j, parents), cdiv(s.i, children)
    shares = min(s.i // least, max(AT_ONCE // pose, s.i // (4 * least)))
    found = []
    for held in places:
        share = max(1, min(chunks, shares, CORES * max(1, held // warps) // (s.b * tiles)))
        found.append((share * s.b * tiles * warps / (CORES * held), share))
    shares = next((share for full, share in found if full >= NEARLY), max(share for _, share in found))
    if warps >= 8 and shares == chunks > 1 and LEFT * shares > s.i and not tiled:  # they leave more than all votes
        shares = cdiv(shares, 2)
        if warps < 16:  # tiles of twice as many children
            warps, children, chunks = 2 * warps, 2 * children, shares
    steps = cdiv(chunks, shares)
    options |= {"F": s.a * s.o, "FP": pose, "IC": children, "JT": parents, "num_warps": warps}
    options["NS"] = STAGES if warps < 16 else 2  # with three, registers go to memory
    return Launch((s.b, cdiv(chunks, steps), tiles), steps, cdiv(chunks, steps), options)


@planned
def route_walk(s: Sizes) -> Launch:
    """For `route`."""
    launch = slopes_walk(s)
    return Launch(launch.grid, launch.tiles, launch.splits, {**launch.options, **_each(launch.options)})


@planned
def slopes_walk(s: Sizes) -> Launch:
    """For `slopes`: threads have so few registers that all programs run at once."""
    launch = walk(s, False, WARPS)
    options = {**launch.options, **_at_once(launch, max(WARPS))}
    return Launch(launch.grid, launch.tiles, launch.splits, options)


def _each(options: dict) -> dict[str, bool]:
    """Whether a thread has all children of its columns in a tile: lanes take columns first, four neighbours at most."""
    columns = options["CT"] if "CT" in options else options["JT"] * options["FP"]
    return {"EACH": columns >= 128 * options["num_warps"]}


def _at_once(launch: Launch, most: int) -> dict[str, int]:
    """As many registers as threads have if all programs run at once, if that is not more than so many warps on a core.

    With more of them a last program or two would run alone, for as long as all others together. Of eight warps one or
    two programs run at once anyway: so few registers only sent numbers to memory (a hundred parents of 16 at 1152
    children, batch 128: Heinsen routing 4.92 ms with them and 4.63 without, EM 4.81 and 4.42).
    """
    first, second, third = launch.grid
    warps = launch.options["num_warps"]
    if warps >= 8:
        return {}
    held = min(most // warps * warps, cdiv(first * second * third, CORES) * warps)
    registers = REGISTERS // (32 * max(1, cdiv(held, 4))) // 8 * 8
    return {"maxnreg": registers} if registers < 256 and torch.version.hip is None else {}


@planned
def first_walk(s: Sizes, splits: int) -> Launch:
    """A warp holds a tile of a sample's columns (j,f) and walks over a share of its children, of so many."""
    numbers = s.j * s.a * s.o
    wide = min(FIRST_HELD, power_of_2(numbers))
    tiles, held = cdiv(numbers, wide), SPREAD_NUMBERS if _spread(s) else NUMBERS
    # Of 32 children every lane would take one, and sums over them would go through all lanes.
    children = min(16, power_of_2(cdiv(s.i, splits)), max(1, 32 * held // wide))
    options = {"F": s.a * s.o, "CT": wide, "IC": children, "JT": power_of_2(cdiv(s.j, tiles)), "num_warps": 1}
    options |= {"NS": STAGES, **_each({"CT": wide, "num_warps": 1})}
    launch = Launch((s.b, splits, tiles), cdiv(cdiv(s.i, children), splits), splits, options)
    return Launch(launch.grid, launch.tiles, splits, {**options, **_at_once(launch, FIRST_WARPS)})


def _spread(s: Sizes) -> bool:
    """Whether a layer is far from filling the chip: what counts then is the code that one thread runs."""
    pose = power_of_2(s.a * s.o)
    return s.b * s.i * power_of_2(s.j) * pose <= SPREAD[0] and s.i * pose <= SPREAD[1]


@planned
def whole_walk(s: Sizes, iterations: int) -> Launch | None:
    """A program makes all iterations of a sample; a thread holds few numbers. None where it would walk for too long."""
    pose, parents, children = power_of_2(s.a * s.o), power_of_2(s.j), power_of_2(s.i)
    votes = children * parents * pose
    if votes > WHOLE or parents * pose > LAST_HELD or iterations > 4:
        return None
    warps = min(4, max(1, votes // 256))  # of more, two programs on a core do not fit
    children = min(children, max(1, 512 * warps // (parents * pose)))
    options = {"F": s.a * s.o, "FP": pose, "IC": children, "JT": parents, "T": iterations, "num_warps": warps}
    return Launch((s.b, 1, 1), cdiv(s.i, children), 1, {**options, "NS": STAGES})


def parents_fit(s: Sizes) -> bool:
    """Whether a program holds all parents of a sample."""
    return power_of_2(s.j) * power_of_2(s.a * s.o) <= MOST_HELD


@planned
def columns(s: Sizes) -> Launch:
    """A program holds a tile of the parents of a sample and walks over all of its children."""
    pose = power_of_2(s.a * s.o)
    parents = max(1, COLUMN // pose)
    while parents * pose < 4 * COLUMN and s.b * cdiv(s.j, 2 * parents) >= 3 * CORES:
        parents *= 2  # fewer programs, of which each has less to put together
    tiles = cdiv(s.j, parents)
    warps = 8 if s.b * tiles <= 2 * CORES and s.i > LONG else 4
    rows = min(power_of_2(s.i), max(1, warps * COLUMN // (parents * pose)))
    together = min(TOGETHER, power_of_2(s.i) // rows)
    options = {"F": s.a * s.o, "FP": pose, "IC": rows * together, "C": together, "JT": parents, "num_warps": warps}
    steps = cdiv(s.i, rows * together)
    return Launch((s.b, tiles, 1), steps, 1, {**options, "NS": STAGES if steps > STAGES else 1})


def last_walk(s: Sizes, iterations: int) -> Launch:
    """A program holds a tile of the parents, what they were in every iteration, and walks over a share of children."""
    if parents_fit(s):
        launch = walk(s, True, (LAST_WARPS,), T=iterations)
        return _launch(launch.grid, launch.tiles, launch.splits, **launch.options, **_at_once(launch, LAST_WARPS))
    pose = power_of_2(s.a * s.o)
    parents = max(1, 4 * COLUMN // pose)
    tiles, chunks = cdiv(s.j, parents), cdiv(s.i, TOGETHER)
    steps = cdiv(chunks, max(1, min(chunks, 8 * CORES // (s.b * tiles))))
    shares = cdiv(chunks, steps)
    options = {"F": s.a * s.o, "FP": pose, "IC": TOGETHER, "JT": parents, "T": iterations, "num_warps": 4, "NS": 1}
    return _launch((s.b, shares, tiles), steps, shares, **options)


@planned
def _launch(programs: tuple[int, int, int], steps: int, shares: int, **options: int) -> Launch:
    """One for all calls that ask for the same: it keeps what is compiled."""
    return Launch(programs, steps, shares, options)


@planned
def over_plane(s: Sizes) -> Launch:
    """A program holds all parents of a child, or walks over them."""
    parents = min(ROW, power_of_2(s.j))
    return grid((s.b * s.i, 1), JC=parents, ONCE=parents >= s.j, num_warps=min(8, max(1, parents // 256)))


@planned
def put_together(s: Sizes, splits: int) -> Launch:
    """A program holds a few parents of a sample, and reads many of the shares that others have left of them at once."""
    pose = power_of_2(s.a * s.o)
    shares = min(max(32, AT_ONCE // pose), power_of_2(splits))
    parents = min(power_of_2(s.j), max(1, FEW // (pose * shares)))
    warps = min(8, max(1, parents * shares // 32, parents * pose * shares // 128))
    return grid((s.b, 1), (s.j, parents), F=s.a * s.o, FP=pose, IC=shares, JT=parents, num_warps=warps)


@planned
def over_betas(s: Sizes, iterations: int) -> Launch:
    """A program sums over a share of the samples, many at a time, for a tile of children and parents."""
    parents = min(64, power_of_2(s.j))
    children = min(power_of_2(s.i), max(1, 256 // parents))
    samples = min(power_of_2(s.b), 2048 // (children * parents))
    tiles, steps = cdiv(s.i, children) * cdiv(s.j, parents), cdiv(s.b, samples)
    steps = cdiv(steps, max(1, min(steps, 2 * CORES // tiles))) if steps > 2 else steps
    options = {"BT": samples, "IC": children, "JT": parents, "T": iterations, "num_warps": 4}
    splits = cdiv(s.b, samples * steps)
    return Launch((cdiv(s.i, children), cdiv(s.j, parents), splits), steps, splits, options)


def samples_at_once(s: Sizes, shared: bool) -> int:
    """Whose votes are stored together: more of them where transforms of each child are read again for each group.

    No more than a grid has tiles for, of 16 rows of a product.
    """
    most = MOST_STORED if shared else 8 * MOST_STORED
    rows = s.a * (s.i if shared else 1)
    return max(1, min(s.b, most // (s.i * s.j * s.a * s.o * 4), 16 * GRID_ROWS // rows))


def stored_grid_reasons(s: Sizes, shared: bool) -> list[str]:
    """Why votes are not stored, if a grid has not rows enough for one sample's: children that share their transforms
    are rows of a product, in tiles of 16; columns come in tiles of at least 32, parents of at least one."""
    if max(cdiv(s.i * s.a, 16) if shared else 0, s.j, cdiv(s.j * s.o, 32)) > GRID_ROWS:
        return ["more parents, their columns by 32, or children's rows by 16 than 65,535: a grid has no more rows"]
    return []


@planned
def product_launches(s: Sizes, shared: bool) -> tuple[Launch, Launch, Launch]:
    """Votes made, their gradient by children, and by transforms."""
    groups, rows, columns = (1, s.b * s.i * s.a, s.j * s.o) if shared else (s.i, s.b * s.a, s.j * s.o)
    options = {"A": s.a, "K": s.k, "O": s.o, "num_warps": 4}
    make = _making(groups, rows // s.a, columns * s.a, options)
    if rows <= FEW_ROWS:
        tall, deep = power_of_2(rows), power_of_2(s.k)
        options |= {"KP": deep, "RT": tall, "FEW": True}
        wide = min(power_of_2(columns), max(1, 4096 // (tall * deep)))
        children = _split(groups, cdiv(columns, wide), {**options, "CT": wide})
        wide = min(power_of_2(columns), max(1, 2048 // deep))
        return make, children, Launch((groups, cdiv(columns, wide), 1), rows, 1, {**options, "CT": wide})
    tall = min(64, max(16, power_of_2(rows)))
    wide = min(64 if tall > 16 else 128, max(16, power_of_2(columns)))
    down, across = cdiv(rows, tall), cdiv(columns, wide)
    options |= {"KP": max(16, power_of_2(s.k)), "RT": tall, "CT": wide, "FEW": False, "num_stages": 3}
    # Rows of a batch that all go into one set of transforms are split over programs, where that pays for their sum.
    walk = cdiv(down, max(1, min(down // 2, 2 * CORES // (groups * across)))) if down >= 16 else down
    few = options | {"RT": 16} if 4 * groups * down <= CORES else options  # programs: they get fewer rows of children
    return (
        make,
        _split(groups, across, few, cdiv(rows, few["RT"])),
        Launch((groups, across, cdiv(down, walk)), walk, cdiv(down, walk), options),
    )


def _making(groups: int, rows: int, columns: int, options: dict) -> Launch:
    """Tiles of votes [rows, columns] that a program makes: small where that fills the chip, wide for matrix poses."""
    many = groups * rows * columns > 2 * CORES * MADE or rows > 4 * GRID_ROWS
    made = MADE if many else MADE // 4
    if options["A"] == 1:
        tall = min(32, power_of_2(rows))
        wide = min(made // tall, power_of_2(columns))
    else:
        wide, tall = min(128, power_of_2(columns)), min(made // 128, power_of_2(rows))
        options = {**options, "num_warps": max(1, wide // 32)}
    return Launch((groups, cdiv(columns, wide), cdiv(rows, tall)), 1, 1, {**options, "RT": tall, "CT": wide})


def _split(groups: int, across: int, options: dict, down: int = 1) -> Launch:
    """Columns are split over programs where those are few, and walk long enough to pay for a sum of what they leave."""
    splits = min(across // 4, 2 * CORES // (groups * down)) if across >= 16 else 1
    walk = cdiv(across, max(1, splits))
    return Launch((groups, down, cdiv(across, walk)), walk, cdiv(across, walk), options)


@planned
def votes_walk(kernel: str, s: Sizes, whole: bool = False) -> Launch:
    """Children are split over programs until there are enough; `whole`: one tile holds all parents."""
    most, children, programs = REGISTER_TILES[kernel]
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
    children = min(power_of_2(i), BETAS_HELD // (parents * samples))
    return {"BT": samples, "IC": children, "JT": parents, "num_warps": 4}


@planned
def betas_walk(b: int, i: int, j: int) -> Launch:
    """Children are split over programs until there are enough of those."""
    tile = betas_tile(b, i, j)
    groups, tiles, chunks = cdiv(b, tile["BT"]), cdiv(j, tile["JT"]), cdiv(i, tile["IC"])
    steps = cdiv(chunks, max(1, min(chunks, 2 * CORES // (groups * tiles))))
    return Launch((groups, cdiv(chunks, steps), tiles), steps, cdiv(chunks, steps), tile)
