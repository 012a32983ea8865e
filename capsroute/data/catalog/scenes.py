"""Scenes of several objects with masks, drawn here; splits are drawn from seeds of their own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from capsroute.data.generated.scenes import FEWEST_SHAPES, MOST_SHAPES, multi_shapes, tetrominoes_like
from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import ImageSet

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
    metadata = {key: torch.cat([part.metadata[key] for part in drawn]) for key in drawn[0].metadata}
    images, labels = torch.cat([part.images for part in drawn]), torch.cat([part.labels for part in drawn])
    return ImageSet(images, labels, info.classes, info.name, split, metadata)


register(
    DatasetInfo(
        name="tetrominoes_like",
        title="Three tetrominoes of six colours on black, with masks",
        classes=("three pieces",),
        shape=(3, 35, 35),
        sizes=SIZES,
        licence="Apache-2.0, as capsroute",
        origin="drawn here",
        read=_read_tetrominoes,
    )
)
register(
    DatasetInfo(
        name="multi_shapes",
        title="Two to four sprites of six shapes on plain grey, with masks",
        classes=tuple(f"{n} shapes" for n in range(FEWEST_SHAPES, MOST_SHAPES + 1)),
        shape=(3, 48, 48),
        sizes=SIZES,
        licence="Apache-2.0, as capsroute",
        origin="drawn here",
        read=_read_shapes,
    )
)
