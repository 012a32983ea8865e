import json
from dataclasses import replace

import numpy as np
import pytest

from capsroute.data import DataError, DataFile, dataset_info, datasets, load
from capsroute.data.catalog.cifar import decode_cifar, decode_json_labels, png_sheet_to_cifar
from tests.data import writers

RNG = np.random.default_rng(0)


def _unchecked(info):
    return replace(info, files=tuple(DataFile(file.name) for file in info.files), sources=())


def test_cifar10_joins_its_batches_in_order(tmp_path, monkeypatch):
    images = RNG.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(60) % 10
    info = replace(_unchecked(dataset_info("cifar10")), sizes={"train": 45, "validation": 5, "test": 10})
    monkeypatch.setitem(datasets._REGISTRY, "cifar10", info)
    (tmp_path / "cifar10").mkdir()
    for number, file in enumerate(info.files):
        rows = slice(10 * number, 10 * (number + 1))
        (tmp_path / "cifar10" / file.name).write_bytes(writers.cifar(images[rows], labels[rows]))
    whole = load("cifar10", "train+validation", root=tmp_path)
    assert np.array_equal(whole.images.numpy(), images[:50])
    assert whole.labels.tolist() == labels[:50].tolist()
    assert np.array_equal(load("cifar10", "test", root=tmp_path).images.numpy(), images[50:])


def test_cifar100_has_fine_labels_and_superclasses(tmp_path, monkeypatch):
    images = RNG.integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    fine, coarse = np.arange(20) + 80, np.arange(20)
    info = replace(_unchecked(dataset_info("cifar100")), sizes={"train": 18, "validation": 2, "test": 20})
    monkeypatch.setitem(datasets._REGISTRY, "cifar100", info)
    for file in info.files:
        (tmp_path / file.name).write_bytes(writers.cifar(images, coarse, fine))
    test = load("cifar100", "test", root=tmp_path)
    assert test.labels.tolist() == fine.tolist()
    assert test.metadata["superclass"].tolist() == coarse.tolist()
    assert len(test.classes) == 100
    assert list(test.classes) == sorted(test.classes)


@pytest.mark.network
def test_the_real_cifar10(tmp_path):
    whole, test = (load("cifar10", split, root=tmp_path) for split in ("train+validation", "test"))
    assert whole.images.shape == (50_000, 3, 32, 32)
    assert whole.labels[:5].tolist() == [6, 9, 9, 4, 1]
    assert test.labels.bincount().tolist() == [1000] * 10
    pixels = whole.images.double() / 255
    assert pixels.mean(dim=(0, 2, 3)).tolist() == pytest.approx([0.49139968, 0.48215841, 0.44653091], abs=1e-8)
    assert pixels.std(dim=(0, 2, 3), correction=0).tolist() == pytest.approx(
        [0.24703223, 0.24348513, 0.26158784], abs=1e-8
    )


IMAGES = RNG.integers(0, 256, (4, 3, 32, 32), dtype=np.uint8)


def test_planes_and_both_labels_of_cifar100():
    coarse, fine = np.array([0, 19, 3, 4]), np.array([99, 0, 50, 7])
    images, labels = decode_cifar(writers.cifar(IMAGES, coarse, fine), "train.bin", classes=(20, 100))
    assert np.array_equal(images.numpy(), IMAGES)
    assert labels.tolist() == [[0, 99], [19, 0], [3, 50], [4, 7]]


def test_png_sheet_becomes_the_original_records():
    # A sheet has one row an image, pixels in reading order, colours together: not planes.
    sheet = IMAGES.transpose(0, 2, 3, 1).reshape(4, 1024, 3)
    labels = [3, 1, 4, 1]
    assert png_sheet_to_cifar(writers.png(sheet), labels, "sheet") == writers.cifar(IMAGES, np.array(labels))


def test_label_out_of_range():
    with pytest.raises(DataError, match=r"train.bin: expected labels 0 to 9, found 10"):
        decode_cifar(writers.cifar(IMAGES, np.array([0, 10, 1, 2])), "train.bin", classes=(10,))


@pytest.mark.parametrize("cut", [1, 3072, 3073 * 4 - 1])
def test_truncated_records(cut):
    content = writers.cifar(IMAGES, np.arange(4))[:cut]
    with pytest.raises(DataError, match=rf"records of 3073 bytes, found {cut} bytes"):
        decode_cifar(content, "data_batch_1.bin", classes=(10,))


def test_sheet_with_too_few_rows():
    with pytest.raises(DataError, match="expected 5 rows"):
        png_sheet_to_cifar(writers.png(np.zeros((4, 1024, 3), np.uint8)), [0] * 5, "sheet")


@pytest.mark.parametrize("labels", [[1, 2], [1, 2, 10], [1, 2, -1], [1, 2, 3.0], [1, 2, True], {"1": 2}, "123", None])
def test_json_that_is_not_three_digits(labels):
    with pytest.raises(DataError, match="JSON list of 3 labels"):
        decode_json_labels(json.dumps(labels).encode(), "labels.json", 3)


def test_truncated_json():
    with pytest.raises(DataError, match="damaged JSON"):
        decode_json_labels(b"[1,2,", "labels.json", 3)


def test_deeply_nested_json():
    with pytest.raises(DataError, match=r"labels\.json: expected a JSON list"):
        decode_json_labels(b"[" * 200_000, "labels.json", 3)
