"""rMNIST and bMNIST, the original rotated and background MNIST (Larochelle et al. 2007), in .amat text files."""

from __future__ import annotations

from pathlib import Path

from capsroute.data.files import DataFile, read_file
from capsroute.data.formats.amat import decode_amat
from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import ImageSet
from capsroute.data.sources import Download, PublicAddress
from capsroute.data.splits import cut_split

ADDRESS = "http://www.iro.umontreal.ca/~lisa/icml2007data"
COLUMN_MAJOR = ("bmnist",)


def _read(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    file = info.files[1] if split == "test" else info.files[0]
    images, labels = decode_amat(read_file(folder, file), file.name, info.name in COLUMN_MAJOR)
    return cut_split(ImageSet(images, labels, info.classes, info.name, split), split, parts=6)


def _entry(name: str, title: str, files: tuple[str, str], archive: str, checksum: str) -> DatasetInfo:
    download = Download(f"{ADDRESS}/{archive}", checksum, members={file: file for file in files})
    return DatasetInfo(
        name=name,
        title=title,
        classes=tuple("0123456789"),
        shape=(1, 28, 28),
        sizes={"train": 10_000, "validation": 2_000, "test": 50_000},
        licence="none stated (Larochelle et al. 2007); MNIST's own is CC BY-SA 3.0",
        origin=f"the page of the MNIST variations of LISA, Montreal ({archive})",
        read=_read,
        files=tuple(DataFile(file) for file in files),
        sources=(PublicAddress((download,)),),
    )


register(
    _entry(
        "rmnist",
        "rMNIST: rotated MNIST, the original files",
        ("mnist_all_rotation_normalized_float_train_valid.amat", "mnist_all_rotation_normalized_float_test.amat"),
        "mnist_rotation_new.zip",
        "md5:0f9a947ff3d30e95cd685462cbf3b847",
    )
)
register(
    _entry(
        "bmnist",
        "bMNIST: MNIST on photographs, the original files",
        ("mnist_background_images_train.amat", "mnist_background_images_test.amat"),
        "mnist_background_images.zip",
        "sha256:1b6318b8774bf1a96480c32afb68147b6b9d529c3b646a0a739d9f0e11b580c3",
    )
)
