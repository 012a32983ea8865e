import torch
from sklearn.datasets import load_digits

from capsroute.data import load


def test_every_digit_is_in_exactly_one_split():
    parts = {split: load("digits", split) for split in ("train", "validation", "test")}
    assert [len(part) for part in parts.values()] == [1295, 143, 359]
    rows = torch.cat([part.images.flatten(1) for part in parts.values()])
    truth = (torch.from_numpy(load_digits().data) * 255 / 16).round().to(torch.uint8)
    assert sorted(map(tuple, rows.tolist())) == sorted(map(tuple, truth.tolist()))


def test_each_split_is_stratified():
    for split in ("train", "validation", "test"):
        part = load("digits", split)
        shares = part.labels.bincount(minlength=10) / len(part)
        assert float((shares - 0.1).abs().max()) < 0.01


def test_pixels_use_the_whole_range_and_stay_with_their_label():
    part = load("digits", "train+validation")
    assert (int(part.images.min()), int(part.images.max())) == (0, 255)
    bunch = load_digits()
    key = {tuple((row * 255 / 16).round().astype(int).tolist()): label for row, label in zip(bunch.data, bunch.target)}
    assert [key[tuple(row)] for row in part.images.flatten(1).tolist()] == part.labels.tolist()
