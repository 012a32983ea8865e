from dataclasses import replace

import numpy as np
import pytest

from capsroute.data import DataFile, dataset_info, load, registry
from tests.data import writers

RNG = np.random.default_rng(0)


def _unchecked(info):
    return replace(info, files=tuple(DataFile(file.name) for file in info.files), sources=())


def test_cifar10_joins_its_batches_in_order(tmp_path, monkeypatch):
    images = RNG.integers(0, 256, (60, 3, 32, 32), dtype=np.uint8)
    labels = np.arange(60) % 10
    info = replace(_unchecked(dataset_info("cifar10")), sizes={"train": 45, "validation": 5, "test": 10})
    monkeypatch.setitem(registry._REGISTRY, "cifar10", info)
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
    monkeypatch.setitem(registry._REGISTRY, "cifar100", info)
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
