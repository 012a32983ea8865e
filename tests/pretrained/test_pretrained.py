"""The networks in the package load, are small, and are the ones that their README describes."""

import hashlib
import re

import pytest

import capsroute as cr
from capsroute.pretrained import list_pretrained, pretrained_folder


@pytest.mark.parametrize("name", list_pretrained())
def test_files_are_those_of_the_readme(name):
    folder = pretrained_folder(name)
    sums = dict(re.findall(r"sha256 (\w{64})  (\S+)", (folder / "README.md").read_text())[::-1])
    assert set(sums.values()) == {"model.safetensors", "master.safetensors"}
    for expected, file in sums.items():
        content = (folder / file).read_bytes()
        assert hashlib.sha256(content).hexdigest() == expected
        assert len(content) < 2_000_000


@pytest.mark.parametrize("name", list_pretrained())
def test_master_coefficients_fit_the_model(name):
    folder = pretrained_folder(name)
    model = cr.load_model(folder)
    master = cr.inference.MasterCoefficients.load(folder / "master.safetensors")
    assert cr.inference.with_coefficients(model, master).num_classes == model.num_classes


def test_an_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="name: expected one of mnist-max-min, got 'resnet'"):
        pretrained_folder("resnet")
