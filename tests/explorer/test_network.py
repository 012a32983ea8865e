"""What is shown: the networks in the package, a folder of weights, a run with its own test images."""

import pytest
import torch

import capsroute as cr
from capsroute.explorer.network import load_network, load_networks


def test_the_model_in_the_package_knows_the_samples_in_the_package():
    network = load_network()
    images = network.samples.float() / 255
    wanted = torch.tensor([int(label) for label in network.labels])
    assert network.centred
    for model in (network.model, cr.inference.with_coefficients(network.model, network.master)):
        assert float((model(images).scores.argmax(1) == wanted).float().mean()) >= 0.9


def test_all_networks_of_the_package_are_shown_with_their_own_class_names():
    shown = load_networks()
    assert next(iter(shown)) == "mnist-max-min"
    assert set(shown) == {weights.tag for weights in cr.models.pretrained_weights()}
    assert shown["cifar10-inverted-attention"].classes[3] == "cat"
    assert shown["cifar10-inverted-attention"].model.preprocessing.mean is not None


def test_a_folder_of_weights_has_no_samples(tmp_path):
    cr.save_model(cr.create_model("capsnet_small", image_size=8), tmp_path / "My Weights")
    ((name, network),) = load_networks([tmp_path / "My Weights"]).items()
    assert name == "my-weights"
    assert len(network.samples) == 0
    assert network.master is None


def test_two_of_one_name_are_told_apart(tmp_path):
    for folder in ("a/best", "b/best"):
        cr.save_model(cr.create_model("capsnet_small", image_size=8), tmp_path / folder)
    assert list(load_networks([tmp_path / "a/best", tmp_path / "b/best"])) == ["best", "best-2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    recipe = cr.training.load_recipe("quickstart", ["training.epochs=1", "evaluation.pictures=false"])
    cr.training.fit(None, None, recipe, folder, reporter=cr.training.SilentReporter())
    return folder


def test_a_run_shows_its_test_images_and_its_master_coefficients(run):
    network = load_network(run)
    assert network.title == "quickstart"
    assert network.samples.shape == (30, 1, 8, 8)
    assert set(network.labels) == set("0123456789")
    test = cr.data.load("digits", "test")
    for image, label in zip(network.samples, network.labels):
        same = (test.images == image).flatten(1).all(1)
        assert test.labels[same].tolist() == [int(label)] * int(same.sum())
    master = cr.inference.MasterCoefficients.load(run / "master.safetensors")
    torch.testing.assert_close(network.master["class_capsules"], master["class_capsules"])


def test_a_run_whose_images_are_gone_says_so_and_keeps_its_master_coefficients(run, monkeypatch):
    def gone(*_, **__):
        raise cr.data.DataError("data.path: 'pets' is not there any more; --data PATH says where")

    monkeypatch.setattr("capsroute.training.run.load_splits", gone)
    with pytest.warns(cr.data.DataWarning, match=r"no sample images: data.path: 'pets' is not there any more$"):
        network = load_network(run)
    assert network.title == "quickstart"
    assert len(network.samples) == 0
    assert network.master is not None


def test_a_folder_that_is_neither_says_what_was_expected(tmp_path):
    with pytest.raises(ValueError, match=r"expected config.json"):
        load_network(tmp_path)
