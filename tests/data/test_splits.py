import numpy as np
import pytest
import torch

from capsroute.data import ImageSet
from capsroute.data.splits import cut_instance, cut_split, splitmix64, stratified_cut


def _numbered(labels, **metadata):
    count = len(labels)
    images = torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1)
    return ImageSet(images, labels, ("a", "b", "c"), metadata=metadata)


@pytest.mark.parametrize("count", [0, 1, 7, 20, 59])
def test_cut_is_exact_disjoint_and_proportional(count):
    labels = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
    rest, held = stratified_cut(labels, count)
    assert len(held) == count
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(60))
    for label, share in ((0, 1 / 2), (1, 1 / 3), (2, 1 / 6)):
        assert abs(int((labels[held] == label).sum()) - count * share) < 1


def test_the_cut_never_changes():
    # Written down on the day it was made: published numbers depend on which images are held out.
    _, held = stratified_cut(torch.arange(40) % 4, 8)
    assert held.tolist() == [3, 10, 16, 18, 20, 21, 33, 35]
    assert splitmix64(np.arange(2, dtype=np.uint64), 0).tolist() == [16294208416658607535, 10451216379200822465]


def test_train_and_validation_make_up_the_training_data():
    everything = _numbered(torch.arange(60) % 3)
    train, validation = (cut_split(everything, split, parts=6) for split in ("train", "validation"))
    assert len(validation) == 10
    together = torch.cat([train.images, validation.images]).flatten().tolist()
    assert sorted(together) == list(range(60))
    assert cut_split(everything, "train+validation") is everything
    assert cut_split(everything, "test") is everything


def test_views_of_one_toy_are_never_in_train_and_validation():
    instance = torch.arange(60) % 5 + 2
    toys = _numbered(torch.arange(60) // 20, instance=instance)
    train, validation = (cut_instance(toys, split) for split in ("train", "validation"))
    assert set(train.metadata["instance"].tolist()) == {2, 3, 4, 5}
    assert set(validation.metadata["instance"].tolist()) == {6}
    assert len(cut_instance(toys, "test")) == 60


def test_holding_out_everything_is_refused():
    with pytest.raises(ValueError, match="count: expected 0 to 2 held-out rows, got 3"):
        stratified_cut(torch.zeros(3, dtype=torch.int64), 3)
