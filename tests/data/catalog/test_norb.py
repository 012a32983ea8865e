from dataclasses import replace

import numpy as np
import pytest
import torch

from capsroute.data import DataError, DataFile, dataset_info, datasets, load
from capsroute.data.catalog.norb import decode_norb, resized
from tests.data import writers

N = 50
IMAGES = np.random.default_rng(0).integers(0, 256, (N, 2, 8, 8), dtype=np.uint8)
CATEGORY = (np.arange(N) // 10).astype(np.int32)
INSTANCE = np.array([4, 6, 7, 8, 9], dtype=np.int32)[np.arange(N) % 5]
FACTS = np.stack([INSTANCE, np.arange(N) % 9, np.arange(N) % 18 * 2, np.arange(N) % 6], axis=1).astype(np.int32)


def _write(folder, monkeypatch, images=IMAGES, category=CATEGORY, facts=FACTS):
    info = dataset_info("smallnorb")
    files = tuple(DataFile(file.name) for file in info.files)
    info = replace(info, files=files, sizes={"train": 40, "validation": 10, "test": 50}, sources=())
    monkeypatch.setitem(datasets._REGISTRY, "smallnorb", info)
    for part in (files[:3], files[3:]):
        for file, array in zip(part, (images, category, facts), strict=True):
            (folder / file.name).write_bytes(writers.norb(array))


def test_images_and_all_metadata(tmp_path, monkeypatch):
    _write(tmp_path, monkeypatch)
    toys = load("smallnorb", "test", root=tmp_path)
    assert np.array_equal(toys.images.numpy(), IMAGES)
    assert toys.labels.tolist() == CATEGORY.tolist() == toys.metadata["category"].tolist()
    for column, key in enumerate(("instance", "elevation", "azimuth", "lighting")):
        assert toys.metadata[key].tolist() == FACTS[:, column].tolist()


def test_validation_is_a_toy_that_training_never_shows(tmp_path, monkeypatch):
    _write(tmp_path, monkeypatch)
    train, validation = (load("smallnorb", split, root=tmp_path) for split in ("train", "validation"))
    assert set(train.metadata["instance"].tolist()) == {4, 6, 7, 8}
    assert set(validation.metadata["instance"].tolist()) == {9}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"category": CATEGORY + 1}, "category of 0 to 4, found 1 to 5"),
        ({"category": CATEGORY[:-1]}, "as many images, categories and rows"),
        ({"facts": FACTS[:, :3].copy()}, "as many images, categories and rows"),
        ({"facts": FACTS - 1}, "elevation of 0 to 8, found -1"),
        ({"facts": FACTS * np.array([1, 1, 2, 1], dtype=np.int32)}, "azimuth of 0 to 35, found 0 to 68"),
    ],
)
def test_numbers_out_of_range(tmp_path, monkeypatch, change, complaint):
    _write(tmp_path, monkeypatch, **change)
    with pytest.raises(DataError, match=complaint):
        load("smallnorb", "test", root=tmp_path)


def test_photographs_can_be_made_smaller():
    ramp = torch.arange(96, dtype=torch.uint8).expand(1, 2, 96, 96)
    half = resized(ramp, 48)
    assert half.shape == (1, 2, 48, 48)
    middle = half[0, 0, 0, 2:-2].float()
    assert (middle - (2 * torch.arange(2, 46) + 0.5)).abs().max() <= 0.5
    with pytest.raises(ValueError, match="size: expected 1 or more pixels, got 0"):
        resized(ramp, 0)


def test_byte_matrix_of_four_dimensions():
    array = np.arange(2 * 2 * 3 * 4, dtype=np.uint8).reshape(2, 2, 3, 4)
    assert decode_norb(writers.norb(array), "dat", dims=4).tolist() == array.tolist()


@pytest.mark.parametrize("shape", [(6,), (6, 4)])
def test_integer_matrix_stores_three_sizes_even_with_fewer_dimensions(shape):
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape) - 3
    assert decode_norb(writers.norb(array), "info", dims=len(shape)).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\x55\x4c", "header of 24 bytes"),
        (b"\0" * 100, "magic number"),
        (writers.norb(np.zeros((2, 3), np.uint8)) + b"\0" * 8, "expected 4 dimensions, found 2"),
        (writers.norb(np.zeros((2, 2, 3, 4), np.uint8))[:-1], "48 bytes of values .* found 47"),
        (writers.norb(np.zeros((2, 2, 3, 4), np.uint8)) + b"\0", "found 49"),
        (writers.norb(np.zeros((2, 0, 3, 4), np.uint8)), "sizes"),
    ],
)
def test_damage_is_named(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_norb(content, "training-dat.mat", dims=4)
    assert "training-dat.mat" in str(caught.value)
