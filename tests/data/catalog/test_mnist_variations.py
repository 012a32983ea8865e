from dataclasses import replace

import numpy as np
import pytest

from capsroute.data import DataError, dataset_info, load, registry
from tests.data import writers


@pytest.mark.parametrize("name", ["rmnist", "bmnist"])
def test_both_files_and_a_sixth_for_validation(tmp_path, monkeypatch, name):
    info = replace(dataset_info(name), sizes={"train": 20, "validation": 4, "test": 10})
    monkeypatch.setitem(registry._REGISTRY, name, info)
    greys = np.random.default_rng(0).integers(0, 256, (24, 784))
    labels = np.arange(24) % 10
    (tmp_path / info.files[0].name).write_bytes(writers.amat(greys / 255, labels))
    test = tmp_path / info.files[1].name
    test.write_bytes(writers.amat(greys[:10] / 255, labels[:10]))
    pictures = greys.reshape(24, 1, 28, 28)
    expected = pictures.transpose(0, 1, 3, 2) if name == "bmnist" else pictures
    assert np.array_equal(load(name, "train+validation", root=tmp_path).images.numpy(), expected)
    assert len(load(name, "validation", root=tmp_path)) == 4
    # Cut at the end of a line, the file is well formed but too short.
    test.write_bytes(b"".join(test.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=f"expected 10 entries in {name} test, found 9"):
        load(name, "test", root=tmp_path)
