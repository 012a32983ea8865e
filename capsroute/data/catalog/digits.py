"""The 8x8 handwritten digits that scikit-learn carries (UCI, Alpaydin & Kaynak 1998): real, tiny, no download."""

from __future__ import annotations

import torch

from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import ImageSet
from capsroute.data.splits import cut_split, stratified_cut

TEST_SEED = 8


def _read(info: DatasetInfo, folder: None, split: str) -> ImageSet:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(bunch.images)[:, None]  # [n, 1, 8, 8], 0 to 16
    images = (images * 255 / 16).round().to(torch.uint8)
    labels = torch.from_numpy(bunch.target).long()
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
        origin="scikit-learn, which carries them",
        read=_read,
    )
)
