import os

import pytest
import torch
from safetensors.torch import save_file

from capsroute.inference import MasterCoefficients
from tests.inference.networks import OneLayer, make_batches, quiet_accumulate


def test_saved_and_loaded_is_the_same(tmp_path):
    master = quiet_accumulate(OneLayer(), make_batches(), filter={"name": "similarity", "fraction": 0.5})
    master.save(tmp_path / "deep" / "master.safetensors")
    again = MasterCoefficients.load(tmp_path / "deep" / "master.safetensors")
    assert list(again) == list(master) == ["capsules"]
    assert torch.equal(again["capsules"], master["capsules"])
    assert torch.equal(again.counts, master.counts)
    assert again.how == master.how
    assert again.how["filter"] == {"name": "similarity", "measure": "pearson", "fraction": 0.5, "threshold": None}


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "master.safetensors"
    MasterCoefficients({"a": torch.ones(2, 2)}, torch.ones(2)).save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        MasterCoefficients({"a": torch.zeros(3, 3)}, torch.ones(3)).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_refuses_other_files(tmp_path):
    with pytest.raises(ValueError, match="found no such file"):
        MasterCoefficients.load(tmp_path / "none.safetensors")
    (tmp_path / "cut").write_bytes(b"12345678{")
    with pytest.raises(ValueError, match="found a damaged one"):
        MasterCoefficients.load(tmp_path / "cut")
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="expected master coefficients, found weight"):
        MasterCoefficients.load(tmp_path / "weights")
