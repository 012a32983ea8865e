"""Scenes of several objects with the mask of each, drawn on the device: tetrominoes, and sprites of many shapes.

`masks` [n,h,w] say what each pixel belongs to: 0 the ground, 1, 2, ... an object. They are what slots are judged by,
never what they are trained with.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.seeding import generator_at
from capsroute.data.sets import ImageSet, joined

CHUNK = 1000  # pictures drawn at once; changing it changes every set
CELLS = 7  # a side of the tetrominoes' board
PIECES = 3
TETROMINO_COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0), (255, 0, 255), (0, 255, 255))
_OUTLINES = (  # the seven pieces of the game, as cells (row, column)
    ((0, 0), (0, 1), (0, 2), (0, 3)),
    ((0, 0), (0, 1), (1, 0), (1, 1)),
    ((0, 0), (0, 1), (0, 2), (1, 1)),
    ((0, 0), (0, 1), (1, 1), (1, 2)),
    ((0, 1), (0, 2), (1, 0), (1, 1)),
    ((0, 0), (1, 0), (1, 1), (1, 2)),
    ((0, 2), (1, 0), (1, 1), (1, 2)),
)
SHAPES = ("square", "disc", "triangle", "cross", "ring", "star")
FEWEST_SHAPES, MOST_SHAPES = 2, 4
SHAPE_COUNTS = tuple(f"{n} shapes" for n in range(FEWEST_SHAPES, MOST_SHAPES + 1))  # what pictures are labelled with


def tetrominoes_like(count: int, seed: int = 0, cell: int = 5, device: torch.device | str = "cpu") -> ImageSet:
    """Three tetrominoes of six colours on black, 35 x 35: pieces neither overlap nor share an edge.

    Each stands anywhere on a board of 7 x 7 cells of `cell` pixels, turned by any quarter. Metadata: `masks`.

    >>> from capsroute.data.catalog.scenes import tetrominoes_like
    >>> scenes = tetrominoes_like(4)
    >>> scenes.images.shape, sorted(scenes.metadata["masks"].unique().tolist())
    (torch.Size([4, 3, 35, 35]), [0, 1, 2, 3])
    """
    _check(count, cell=cell)
    boards = _placements().to(device)  # [p, 49]
    fits = _fitting(boards)  # [p, p]
    colours = torch.tensor(TETROMINO_COLOURS, dtype=torch.uint8, device=device)
    images, masks = [], []
    for chunk, size in enumerate(_sizes(count)):
        generator = generator_at(seed, "tetrominoes_like", chunk)
        draws = torch.rand(size, PIECES, generator=generator, dtype=torch.float64).to(device)
        shades = torch.randint(len(colours), (size, PIECES), generator=generator).to(device)
        owner = _owners(boards, fits, draws)  # [n, 49]
        painted = torch.cat([torch.zeros_like(colours[:1]).expand(size, 1, 3), colours[shades]], 1)
        image = painted.gather(1, owner.unsqueeze(2).expand(-1, -1, 3))  # [n, 49, 3]
        images.append(_enlarged(image.mT.unflatten(2, (CELLS, CELLS)), cell))
        masks.append(_enlarged(owner.to(torch.uint8).unflatten(1, (CELLS, CELLS)), cell))
    labels = torch.zeros(count, dtype=torch.int64, device=device)
    metadata = {"masks": torch.cat(masks)}
    return ImageSet(torch.cat(images), labels, ("three pieces",), "tetrominoes_like", "train", metadata)


def multi_shapes(count: int, seed: int = 0, size: int = 48, device: torch.device | str = "cpu") -> ImageSet:
    """Two to four sprites of six shapes, any size, angle and colour, on plain grey ground; those in front cover others.

    Metadata: `masks`, and `shapes` [n,4], the kind of each object (-1 where there is none).

    >>> from capsroute.data.catalog.scenes import multi_shapes
    >>> scenes = multi_shapes(4)
    >>> scenes.images.shape, scenes.metadata["shapes"].shape
    (torch.Size([4, 3, 48, 48]), torch.Size([4, 4]))
    """
    _check(count, size=size)
    parts: list[list[Tensor]] = [[], [], [], []]
    for chunk, number in enumerate(_sizes(count)):
        drawn = _draw_shapes(number, size, generator_at(seed, "multi_shapes", chunk), torch.device(device))
        for part, values in zip(parts, drawn):
            part.append(values)
    images, labels, masks, shapes = (torch.cat(part) for part in parts)
    return ImageSet(images, labels, SHAPE_COUNTS, "multi_shapes", "train", {"masks": masks, "shapes": shapes})


def _check(count: int, **sides: int) -> None:
    if count < 1:
        raise ValueError(f"count: expected 1 or more, got {count}")
    for name, side in sides.items():
        if side < 1:
            raise ValueError(f"{name}: expected 1 or more pixels, got {side}")


def _sizes(count: int) -> list[int]:
    return [min(CHUNK, count - start) for start in range(0, count, CHUNK)]


# Tetrominoes


def _placements() -> Tensor:
    """Every piece in every turn at every place of the board: [p, 49] of zeros and ones."""
    turned = set()
    for outline in _OUTLINES:
        cells: tuple[tuple[int, int], ...] = outline
        for _ in range(4):
            cells = tuple((column, -row) for row, column in cells)
            top, left = min(row for row, _ in cells), min(column for _, column in cells)
            turned.add(tuple(sorted((row - top, column - left) for row, column in cells)))
    boards = []
    for shape in sorted(turned):
        height, width = (max(cell[axis] for cell in shape) + 1 for axis in (0, 1))
        for top in range(CELLS - height + 1):
            for left in range(CELLS - width + 1):
                board = torch.zeros(CELLS, CELLS)
                for row, column in shape:
                    board[top + row, left + column] = 1
                boards.append(board.flatten())
    return torch.stack(boards)


def _fitting(boards: Tensor) -> Tensor:
    """Which placements can stand beside which: no cell in common, and no edge. [p, p]"""
    cross = torch.tensor([[0.0, 1, 0], [1, 1, 1], [0, 1, 0]], device=boards.device)
    around = F.conv2d(boards.view(-1, 1, CELLS, CELLS), cross[None, None], padding=1)
    return around.flatten(1) @ boards.T < 0.5  # none in common, whatever a convolution rounds


def _owners(boards: Tensor, fits: Tensor, draws: Tensor) -> Tensor:
    """Whose each cell is [n, 49]: 0 nobody's, else the number of the piece. draws [n, 3] in [0, 1)."""
    # A second piece must leave room for a third.
    roomy = fits & (fits.float() @ fits.float() > 0)
    first = (draws[:, 0] * len(boards)).long()
    second = _pick(roomy[first], draws[:, 1])
    third = _pick(fits[first] & fits[second], draws[:, 2])
    owner = torch.zeros(len(draws), CELLS * CELLS, dtype=torch.int64, device=draws.device)
    for number, piece in enumerate((first, second, third), 1):
        owner = torch.where(boards[piece] > 0, number, owner)
    return owner


def _pick(allowed: Tensor, draw: Tensor) -> Tensor:
    """One of the allowed columns of each row [n, p], each as likely; whole numbers only, the same on every device."""
    order = allowed.int().cumsum(1)
    wanted = (draw * order[:, -1]).long() + 1
    return torch.searchsorted(order.long(), wanted.unsqueeze(1)).squeeze(1)


def _enlarged(cells: Tensor, cell: int) -> Tensor:
    return cells.repeat_interleave(cell, -1).repeat_interleave(cell, -2)


# Sprites


def _draw_shapes(
    count: int, size: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images [n,3,h,w], how many objects there are less two [n], masks [n,h,w], kinds [n,4]."""

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return (low + (high - low) * torch.rand(*shape, generator=generator)).to(device)

    slots = MOST_SHAPES
    number = torch.randint(FEWEST_SHAPES, slots + 1, (count,), generator=generator).to(device)
    kind = torch.randint(len(SHAPES), (count, slots), generator=generator).to(device)
    radius = uniform(count, slots, low=0.12, high=0.2)  # of the side
    angle = uniform(count, slots, high=2 * math.pi)
    centre = _apart(uniform(count, 8, slots, 2, low=0.16, high=0.84))
    colour = _colours(uniform(count, slots), uniform(count, slots, low=0.6), uniform(count, slots, low=0.6))
    ground = uniform(count, 1, 1, 1, high=0.4).expand(-1, 3, size, size)

    pixel = (torch.arange(size, device=device) + 0.5) / size
    y, x = torch.meshgrid(pixel, pixel, indexing="ij")
    image, mask = ground, torch.zeros(count, size, size, dtype=torch.uint8, device=device)
    for slot in range(slots):
        turn = (angle[:, slot].cos()[:, None, None], angle[:, slot].sin()[:, None, None])
        right, down = ((grid - centre[:, slot, axis, None, None]) for axis, grid in enumerate((x, y)))
        across = (turn[0] * right + turn[1] * down) / radius[:, slot, None, None]
        along = (turn[0] * down - turn[1] * right) / radius[:, slot, None, None]
        inside = _inside(kind[:, slot, None, None], across, along) & (slot < number)[:, None, None]
        image = torch.where(inside.unsqueeze(1), colour[:, slot, :, None, None], image)
        mask = torch.where(inside, slot + 1, mask)
    kind = torch.where(torch.arange(slots, device=device) < number[:, None], kind, -1)
    return (image * 255).round().to(torch.uint8), number - FEWEST_SHAPES, mask.to(torch.uint8), kind


def _apart(centres: Tensor) -> Tensor:
    """Of several layouts [n, tries, objects, 2] the one whose closest two are farthest apart: [n, objects, 2]."""
    distance = (centres.unsqueeze(3) - centres.unsqueeze(2)).square().sum(4)
    distance = distance + 9 * torch.eye(centres.shape[2], device=centres.device)
    best = distance.flatten(2).amin(2).argmax(1)
    return centres[torch.arange(len(centres), device=centres.device), best]


def _inside(kind: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Whether points, in units of the radius, lie in shapes of these kinds [n,1,1]: [n,h,w]."""
    r, phi = (x.square() + y.square()).sqrt(), torch.atan2(y, x)
    wide, narrow = torch.maximum(x.abs(), y.abs()), torch.minimum(x.abs(), y.abs())
    shapes = (
        wide < 0.8,
        r < 0.9,
        (y < 0.5) & (y > -1 + 1.7 * x.abs()),
        (wide < 0.95) & (narrow < 0.35),
        (r < 1.0) & (r > 0.5),
        r < 0.72 + 0.28 * (5 * phi).cos(),
    )
    inside = torch.zeros_like(x, dtype=torch.bool)
    for number, shape in enumerate(shapes):
        inside = inside | ((kind == number) & shape)
    return inside


def _colours(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Hue, saturation and value in [0, 1], each [...] -> red, green and blue [..., 3]."""
    thirds = torch.tensor([5.0, 3.0, 1.0], device=hue.device)
    k = (thirds + 6 * hue.unsqueeze(-1)) % 6
    fall = torch.minimum(k, 4 - k).clamp(0, 1)
    return value.unsqueeze(-1) * (1 - saturation.unsqueeze(-1) * fall)


SIZES = {"train": 60_000, "validation": 320, "test": 320}
_SEEDS = {"train": 0, "validation": 1, "test": 2}


def _read_tetrominoes(
    info: DatasetInfo,
    folder: None,
    split: str,
    count: int | None = None,
    seed: int = 0,
    cell: int = 5,
    device: torch.device | str = "cpu",
) -> ImageSet:
    return _read(info, split, count, seed, lambda n, seed: tetrominoes_like(n, seed, cell, device))


def _read_shapes(
    info: DatasetInfo,
    folder: None,
    split: str,
    count: int | None = None,
    seed: int = 0,
    size: int = 48,
    device: torch.device | str = "cpu",
) -> ImageSet:
    return _read(info, split, count, seed, lambda n, seed: multi_shapes(n, seed, size, device))


def _read(
    info: DatasetInfo, split: str, count: int | None, seed: int, draw: Callable[[int, int], ImageSet]
) -> ImageSet:
    parts = split.split("+")
    drawn = [draw(info.sizes[part] if count is None else count, 3 * seed + _SEEDS[part]) for part in parts]
    if len(drawn) == 1:
        return replace(drawn[0], split=split)
    return joined(drawn, info.classes, info.name, split)


SCENES: dict[str, tuple[str, tuple[str, ...], int, Callable[..., ImageSet]]] = {
    "tetrominoes_like": (
        "Three tetrominoes of six colours on black, with masks", ("three pieces",), 35, _read_tetrominoes
    ),
    "multi_shapes": ("Two to four sprites of six shapes on plain grey, with masks", SHAPE_COUNTS, 48, _read_shapes),
}  # fmt: skip

for _name, (_title, _classes, _side, _reader) in SCENES.items():
    register(
        DatasetInfo(
            name=_name,
            title=_title,
            classes=_classes,
            shape=(3, _side, _side),
            sizes=SIZES,
            licence="Apache-2.0, as capsroute",
            origin="drawn here",
            read=_reader,
        )
    )
