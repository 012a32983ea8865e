from dataclasses import replace

import numpy as np

from capsroute.data import DataFile, dataset_info, load, registry
from tests.data import writers


def test_both_files(tmp_path, monkeypatch):
    info = dataset_info("svhn")
    files = tuple(DataFile(file.name) for file in info.files)
    info = replace(info, files=files, sizes={"train": 18, "validation": 2, "test": 20})
    monkeypatch.setitem(registry._REGISTRY, "svhn", info)
    images = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(20) % 10
    (tmp_path / "train_32x32.mat").write_bytes(writers.svhn(images, labels))
    (tmp_path / "test_32x32.mat").write_bytes(writers.svhn(255 - images, labels[::-1]))
    test = load("svhn", "test", root=tmp_path)
    assert np.array_equal(test.images.numpy(), 255 - images.transpose(0, 3, 1, 2))
    assert test.labels.tolist() == labels[::-1].tolist()
    assert len(load("svhn", "validation", root=tmp_path)) == 2
