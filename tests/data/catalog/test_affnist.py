from dataclasses import replace

import numpy as np
import pytest

from capsroute.data import DataError, FetchError, dataset_info, load, registry
from tests.data import writers


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Test batches 1 and 2, of which every picture is filled with the number of its batch."""
    (tmp_path / "affnist" / "test_batches").mkdir(parents=True)
    for number in (1, 2):
        content = writers.affnist(np.full((6, 40, 40), number, np.uint8), np.arange(6))
        (tmp_path / "affnist" / "test_batches" / f"{number}.mat").write_bytes(content)
    info = replace(dataset_info("affnist"), sizes={"train": 6, "validation": 6, "test": 6})
    monkeypatch.setitem(registry._REGISTRY, "affnist", info)
    return tmp_path


def test_the_first_batch_and_any_others(root):
    assert load("affnist", "test", root=root).images.unique().tolist() == [1]
    both = load("affnist", "test", root=root, batches=(2, 1))
    assert both.images[:, 0, 0, 0].tolist() == [2] * 6 + [1] * 6
    assert both.labels.tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_a_batch_that_is_not_there_is_named(root):
    with pytest.raises(DataError, match=r"test_batches/3.mat: expected a file"):
        load("affnist", "test", root=root, batches=(3,))
    with pytest.raises(DataError, match=r"training_batches/1.mat: expected a file"):
        load("affnist", "train", root=root)


def test_without_it_the_error_says_what_to_put_where(tmp_path):
    with pytest.raises(FetchError, match=r"(?s)By hand: get test_batches/1.mat .*put them into .*affnist"):
        load("affnist", "test", root=tmp_path)
