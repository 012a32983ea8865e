"""A tiny MNIST on disk: real idx files whose every digit can be told from every other by its grey value."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest

from capsroute.data import datasets
from capsroute.data.data_files import DataFile
from tests.data import writers

TRAIN, TEST = 180, 60


def squares(count: int, first: int) -> np.ndarray:
    """`count` pictures of a 16x16 square in the middle, of grey `first`, `first + 1` and so on."""
    images = np.zeros((count, 28, 28), dtype=np.uint8)
    images[:, 6:22, 6:22] = np.arange(first, first + count, dtype=np.uint8)[:, None, None]
    return images


def with_checksums(files, contents):
    return tuple(
        DataFile(file.name, len(content), "sha256:" + hashlib.sha256(content).hexdigest())
        for file, content in zip(files, contents, strict=True)
    )


@pytest.fixture
def tiny_mnist(tmp_path, monkeypatch):
    """A root folder with an MNIST of 180 training digits (greys 1 to 180) and 60 test digits (181 to 240)."""
    info = datasets.dataset_info("mnist")
    contents = [
        writers.idx(squares(TRAIN, 1)),
        writers.idx(np.arange(TRAIN) % 10),
        writers.idx(squares(TEST, TRAIN + 1)),
        writers.idx(np.arange(TEST) % 10),
    ]
    (tmp_path / "mnist").mkdir()
    for file, content in zip(info.files, contents, strict=True):
        (tmp_path / "mnist" / file.name).write_bytes(content)
    sizes = {"train": TRAIN - TRAIN // 10, "validation": TRAIN // 10, "test": TEST}
    small = replace(info, files=with_checksums(info.files, contents), sizes=sizes, sources=())
    monkeypatch.setitem(datasets._REGISTRY, "mnist", small)
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path))
    return tmp_path
