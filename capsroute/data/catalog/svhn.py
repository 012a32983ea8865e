"""SVHN (Netzer et al. 2011), cropped house numbers: two MATLAB files."""

from __future__ import annotations

from pathlib import Path

from capsroute.data.files import DataFile, read_file
from capsroute.data.matlab import decode_svhn
from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import ImageSet
from capsroute.data.sources import Download, PublicAddress
from capsroute.data.splits import cut_split

ADDRESS = "http://ufldl.stanford.edu/housenumbers"
FILES = (
    DataFile("train_32x32.mat", 182_040_794, "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
    DataFile("test_32x32.mat", 64_275_384, "md5:eb5a983be6a315427106f1b164d9cef3"),
)


def _read(info: DatasetInfo, folder: Path, split: str) -> ImageSet:
    file = info.files[1] if split == "test" else info.files[0]
    images, labels = decode_svhn(read_file(folder, file), file.name)
    return cut_split(ImageSet(images, labels, info.classes, info.name, split), split)


register(
    DatasetInfo(
        name="svhn",
        title="SVHN: digits of house numbers, cropped",
        classes=tuple("0123456789"),
        shape=(3, 32, 32),
        sizes={"train": 65_932, "validation": 7_325, "test": 26_032},
        licence="for non-commercial use only (Netzer et al.)",
        origin="the SVHN page of Stanford (format 2, cropped digits)",
        read=_read,
        files=FILES,
        sources=(PublicAddress(tuple(Download(f"{ADDRESS}/{file.name}", file.checksum) for file in FILES)),),
    )
)
