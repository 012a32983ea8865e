"""Data sets drawn here: of MNIST digits, rendered toys (train and test share neither digits nor toys), and scenes of
several objects with masks, whose splits are drawn from seeds of their own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.generated.digit_rules import generate
from capsroute.data.generated.scenes import SHAPE_COUNTS, multi_shapes, tetrominoes_like
from capsroute.data.generated.toys import AZIMUTHS, ELEVATIONS, LIGHTINGS, TOYS, render_views
from capsroute.data.sets import ImageSet, cut_instance, joined

AS_MNIST = {"train": 54_000, "validation": 6_000, "test": 10_000}
AS_VARIATIONS = {"train": 10_000, "validation": 2_000, "test": 50_000}
FROM_MNIST = (
    ("shifted_mnist", "Shifted MNIST: digits moved by up to 2 pixels", 28, AS_MNIST),
    ("expanded_mnist", "Expanded MNIST: digits anywhere on 40x40", 40, AS_MNIST),
    ("multimnist", "MultiMNIST: two overlapping digits", 36, AS_MNIST),
    ("diverse_multimnist", "DiverseMultiMNIST: one digit or two overlapping ones", 36, AS_MNIST),
    ("affnist_like", "affNIST-like: digits turned, sheared, scaled, anywhere on 40x40", 40, AS_MNIST),
    ("rotated_mnist", "Rotated MNIST: digits at any angle", 28, AS_VARIATIONS),
    ("background_mnist", "Background MNIST: digits on patches of photographs", 28, AS_VARIATIONS),
)
LOW = 3  # elevations to train on where the others are kept unseen, a third as in Hinton et al. 2018
TRAINING_TOYS, TEST_TOYS = (4, 6, 7, 8, 9), (0, 1, 2, 3, 5)  # smallNORB's own division


def _read_drawn(
    info: DatasetInfo,
    digits: ImageSet,
    split: str,
    count: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> ImageSet:
    everything = sum(info.sizes[part] for part in split.split("+"))
    return generate(info.name, digits.to(device), everything if count is None else count, seed)


def _read_toys(
    info: DatasetInfo,
    folder: None,
    split: str,
    size: int = 96,
    elevations: Sequence[int] | None = None,
    azimuths: Sequence[int] = range(0, 2 * AZIMUTHS, 2),
    lightings: Sequence[int] = range(LIGHTINGS),
    device: torch.device | str = "cpu",
) -> ImageSet:
    instances = TEST_TOYS if split == "test" else TRAINING_TOYS
    elevations = TOY_ELEVATIONS[info.name] if elevations is None else elevations
    images, metadata = render_views(instances, elevations, azimuths, lightings, size, torch.device(device))
    toys = ImageSet(images, metadata["category"], info.classes, info.name, split, metadata)
    return cut_instance(toys, split)


for _name, _title, _side, _sizes in FROM_MNIST:
    register(
        DatasetInfo(
            name=_name,
            title=_title,
            classes=tuple("0123456789"),
            shape=(1, _side, _side),
            sizes=_sizes,
            licence="CC BY-SA 3.0, as MNIST",
            origin="drawn from MNIST here, by the papers' rule",
            read=_read_drawn,
            needs="mnist",
        )
    )

TOY_TITLES = {
    "toynorb": "ToyNORB: rendered toys from many sides, a stand-in for smallNORB",
    "toynorb_low": "ToyNORB from the three lowest elevations, 30 to 40 degrees",
    "toynorb_high": "ToyNORB from the six other elevations, 45 to 70 degrees",
}
TOY_ELEVATIONS = {
    "toynorb": range(ELEVATIONS),
    "toynorb_low": range(LOW),
    "toynorb_high": range(LOW, ELEVATIONS),
}
AT_ONE_ELEVATION = {"train": 2_160, "validation": 540, "test": 2_700}

for _name, _title in TOY_TITLES.items():
    register(
        DatasetInfo(
            name=_name,
            title=_title,
            classes=TOYS,
            shape=(2, 96, 96),
            sizes={split: count * len(TOY_ELEVATIONS[_name]) for split, count in AT_ONE_ELEVATION.items()},
            licence="Apache-2.0, as capsroute",
            origin="rendered here",
            read=_read_toys,
        )
    )


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
