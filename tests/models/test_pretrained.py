"""Weights of the package: found by name and tag, refused when damaged."""

import hashlib
import re
import shutil

import pytest
import torch

import capsroute as cr
from capsroute.models import pretrained


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The package's MNIST network in a folder that a test may damage."""
    shutil.copytree(pretrained.FOLDER / "mnist-max-min", tmp_path / "mnist-max-min")
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    return tmp_path / "mnist-max-min"


def test_every_listed_name_can_be_made_with_its_weights():
    names = cr.list_pretrained()
    assert names == sorted(names)
    assert "capsnet_max_min" in names
    assert cr.list_pretrained("nothing*") == []
    for name in names:
        assert cr.create_model(name, pretrained=True).name == name


def test_true_and_the_tag_give_the_stored_weights():
    stored = cr.load_model(pretrained.FOLDER / "mnist-max-min").state_dict()
    for source in (True, "mnist-max-min"):
        loaded = cr.create_model("capsnet_max_min", pretrained=source).state_dict()
        assert all(torch.equal(loaded[name], tensor) for name, tensor in stored.items())


def test_overrides_that_leave_the_shapes_alone_are_taken():
    model = cr.create_model("capsnet_max_min", pretrained=True, routing="dynamic")
    assert model.class_capsules.routing.name == "dynamic"
    with pytest.raises(ValueError, match="do not fit"):
        cr.create_model("capsnet_max_min", pretrained=True, channels=16)


@pytest.mark.parametrize(
    ("name", "read"),
    [("model.safetensors", cr.create_model), ("master.safetensors", cr.inference.pretrained_coefficients)],
)
def test_a_flipped_bit_is_an_error_with_file_expected_and_found(copy, name, read):
    content = bytearray((copy / name).read_bytes())
    expected = hashlib.sha256(content).hexdigest()
    content[-1] ^= 1
    (copy / name).write_bytes(content)
    found = hashlib.sha256(content).hexdigest()
    message = re.escape(f"{copy / name}: expected sha256 {expected}, found {found}")
    with pytest.raises(ValueError, match=message):
        read("capsnet_max_min", True)


def test_a_missing_file_is_named(copy):
    (copy / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors: expected a file, found none"):
        cr.create_model("capsnet_max_min", pretrained=True)


def test_a_tag_that_is_not_there_is_answered_with_those_that_are():
    with pytest.raises(ValueError, match="'capsnet_max_min' are published as 'cifar'; there are 'mnist-max-min'"):
        cr.create_model("capsnet_max_min", pretrained="cifar")
    with pytest.raises(ValueError, match=r"no weights of 'capsnet' are published; those of .*capsnet_max_min.* are"):
        cr.create_model("capsnet", pretrained=True)


def test_of_several_weights_a_tag_chooses(copy):
    shutil.copytree(copy, copy.with_name("another"))
    tags = [weights.tag for weights in cr.models.pretrained_weights("capsnet_max_min")]
    assert tags == ["another", "mnist-max-min"]
    assert pretrained.find_pretrained("capsnet_max_min").tag == "another"
    assert pretrained.find_pretrained("capsnet_max_min", "mnist-max-min").folder == copy
