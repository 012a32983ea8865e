from dataclasses import replace

import numpy as np
import pytest

from capsroute.data import DataError, DataFile, dataset_info, datasets, load
from capsroute.data.catalog.svhn import decode_affnist, decode_svhn
from tests.data import writers


def test_both_files(tmp_path, monkeypatch):
    info = dataset_info("svhn")
    files = tuple(DataFile(file.name) for file in info.files)
    info = replace(info, files=files, sizes={"train": 18, "validation": 2, "test": 20})
    monkeypatch.setitem(datasets._REGISTRY, "svhn", info)
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(20) % 10
    (tmp_path / "train_32x32.mat").write_bytes(writers.svhn(images, labels))
    (tmp_path / "test_32x32.mat").write_bytes(writers.svhn(255 - images, labels[::-1]))
    test = load("svhn", "test", root=tmp_path)
    assert np.array_equal(test.images.numpy(), 255 - images.transpose(0, 3, 1, 2))
    assert test.labels.tolist() == labels[::-1].tolist()
    assert len(load("svhn", "validation", root=tmp_path)) == 2


RNG = np.random.default_rng(0)
HOUSES = RNG.integers(0, 256, (5, 32, 32, 3), dtype=np.uint8)
DIGITS = RNG.integers(0, 256, (5, 40, 40), dtype=np.uint8)
LABELS = np.array([1, 9, 0, 5, 0])


def test_svhn_pixels_channels_and_the_label_ten():
    images, labels = decode_svhn(writers.svhn(HOUSES, LABELS), "train_32x32.mat")
    assert np.array_equal(images.numpy(), HOUSES.transpose(0, 3, 1, 2))
    assert labels.tolist() == LABELS.tolist()


def test_affnist_rows_are_not_columns():
    images, labels = decode_affnist(writers.affnist(DIGITS, LABELS), "1.mat")
    assert np.array_equal(images[:, 0].numpy(), DIGITS)
    assert labels.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"X": HOUSES.transpose(1, 2, 3, 0), "y": np.array([1, 2, 3, 4, 11])}, "y of 1 to 10, found 1 to 11"),
        ({"X": HOUSES.transpose(1, 2, 3, 0), "y": np.array([1, 2, 3, 4, 0.5])}, "found 0.5 to 4"),
        ({"X": HOUSES.transpose(1, 2, 3, 0), "y": np.array([1, 2, 3])}, "5 numbers in y"),
        ({"X": HOUSES.transpose(1, 2, 3, 0), "y": np.array(["a", "b", "c", "d", "e"])}, "5 numbers in y"),
        ({"X": HOUSES, "y": LABELS}, r"\(32, 32, 3, n\)"),
        ({"X": HOUSES.transpose(1, 2, 3, 0).astype(float), "y": LABELS}, "uint8"),
        ({"y": LABELS}, "variable 'X'"),
    ],
)
def test_a_mat_file_that_is_not_svhn(variables, complaint):
    with pytest.raises(DataError, match=complaint):
        decode_svhn(writers.mat(variables), "train_32x32.mat")


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"affNISTdata": np.zeros(3)}, "one struct with image and label_int"),
        ({"affNISTdata": {"image": DIGITS, "label_int": LABELS}}, r"uint8 \(1600, n\)"),
        ({"affNISTdata": {"image": DIGITS.reshape(5, -1).T, "label_int": LABELS + 9}}, "label_int of 0 to 9"),
        ({"other": LABELS}, "variable 'affNISTdata'"),
    ],
)
def test_a_mat_file_that_is_not_affnist(variables, complaint):
    with pytest.raises(DataError, match=complaint):
        decode_affnist(writers.mat(variables), "1.mat")


def test_not_a_mat_file():
    with pytest.raises(DataError, match="MATLAB 5 file"):
        decode_svhn(b"x" * 500, "train_32x32.mat")
