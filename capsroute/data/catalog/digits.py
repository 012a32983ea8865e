"""8x8 handwritten digits (UCI, Alpaydin & Kaynak 1998; those of scikit-learn): real, tiny, and in the package."""

from pathlib import Path

import numpy as np
import torch

from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.sets import ImageSet, cut_split, stratified_cut

TEST_SEED = 8


def _read(info: DatasetInfo, folder: None, split: str) -> ImageSet:
    with np.load(Path(__file__).with_name("digits.npz")) as kept:
        images = torch.from_numpy(kept["images"])[:, None]  # [n, 1, 8, 8], 0 to 16
        labels = torch.from_numpy(kept["labels"]).long()
    images = (images.double() * 255 / 16).round().to(torch.uint8)
    everything = ImageSet(images, labels, info.classes, info.name, split)
    training, test = stratified_cut(labels, round(0.2 * len(labels)), TEST_SEED)
    return everything.subset(test) if split == "test" else cut_split(everything.subset(training), split)


register(
    DatasetInfo(
        name="digits",
        title="Digits: small handwritten digits",
        classes=tuple("0123456789"),
        shape=(1, 8, 8),
        sizes={"train": 1_295, "validation": 143, "test": 359},
        licence="CC BY 4.0 (UCI Machine Learning Repository)",
        origin="the package, which carries them",
        read=_read,
    )
)
