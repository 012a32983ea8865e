"""affNIST (Tieleman 2013): MNIST digits under random affine transformations, in MATLAB files.

The papers train on expanded MNIST and only test on affNIST, so a copy of the first test batch is enough to be "here".
Nobody published checksums, so there is no automatic source; `affnist_like` generates a stand-in from MNIST.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from capsroute.data.files import DataFile, read_file
from capsroute.data.formats.matlab import decode_affnist
from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import ImageSet

FOLDERS = {
    "train": "training_batches",
    "validation": "validation_batches",
    "train+validation": "training_and_validation_batches",
    "test": "test_batches",
}


def _read(info: DatasetInfo, folder: Path, split: str, batches: Sequence[int] = (1,)) -> ImageSet:
    files = [DataFile(f"{FOLDERS[split]}/{number}.mat") for number in batches]
    parts = [decode_affnist(read_file(folder, file), str(folder / file.name)) for file in files]
    images, labels = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
    return ImageSet(images, labels, info.classes, info.name, split)


register(
    DatasetInfo(
        name="affnist",
        title="affNIST: MNIST under affine transformations (batch 1 of 32)",
        classes=tuple("0123456789"),
        shape=(1, 40, 40),
        sizes={"train": 50_000, "validation": 10_000, "test": 10_000},
        licence="none stated (Tieleman 2013); MNIST's own is CC BY-SA 3.0",
        origin="the affNIST page of Tijmen Tieleman: 32x, transformed, test_batches.zip, unpacked",
        read=_read,
        files=(DataFile("test_batches/1.mat"),),
    )
)
