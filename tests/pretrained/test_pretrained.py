"""The networks in the package: whole, small, in the wheel, and as good as their facts say."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import capsroute as cr
from capsroute.models import pretrained_weights
from capsroute.pretrained import pretrained_folder

REPOSITORY = Path(__file__).parents[2]
ALL = pytest.mark.parametrize("weights", pretrained_weights(), ids=lambda weights: weights.tag)


@ALL
def test_files_have_the_checksums_that_are_written_down_and_are_small(weights):
    folder = pretrained_folder(weights.tag)
    assert {path.name for path in folder.glob("*.safetensors")} == set(weights.files)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 5_000_000


@ALL
def test_the_model_is_the_one_that_the_facts_describe(weights):
    model = cr.create_model(weights.model, pretrained=weights.tag)
    assert sum(parameter.numel() for parameter in model.parameters()) == weights.parameters
    assert len(weights.classes) == model.num_classes
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not model.training


@ALL
def test_master_coefficients_fit_the_model(weights):
    if not weights.has_master:
        pytest.skip(f"{weights.tag} has none")
    model = cr.create_model(weights.model, pretrained=weights.tag)
    master = cr.inference.pretrained_coefficients(weights.model, weights.tag)
    assert cr.inference.with_coefficients(model, master).num_classes == model.num_classes


@ALL
def test_storing_cost_no_accuracy(weights):
    assert weights.check["stored"]["as_trained"] >= weights.check["float32"] - 0.1


def test_digits_are_read_as_well_as_the_facts_say():
    # The explorer's thirty digits are of the training set: the network knows them, another one would not.
    from capsroute.explorer.network import load_network

    network = load_network()
    scores = cr.create_model("capsnet_max_min", pretrained=True)(network.samples / 255).scores
    right = sum(network.classes[guess] == label for guess, label in zip(scores.argmax(1), network.labels))
    assert right >= 29


def test_an_unknown_tag_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"tag: expected one of .*mnist-max-min.*, got 'resnet'"):
        pretrained_folder("resnet")


def test_the_wheel_holds_every_file(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    for weights in pretrained_weights():
        expected = {
            f"capsroute/pretrained/{weights.tag}/{name}" for name in ("config.json", "facts.json", *weights.files)
        }
        assert expected <= packed
    # What keeps this repository's own books stays in it.
    assert {name.split("/")[0] for name in packed if ".dist-info" not in name} == {"capsroute"}
    assert not [
        name for name in packed if name.startswith("capsroute/bench/") and ("goals" in name or "workers" in name)
    ]
