"""A run becomes weights of the package: rounded, measured, whole."""

import pytest
import torch

import capsroute as cr
from capsroute.models import pretrained
from tools.bundle import bundle


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "quick"
    settings = [
        "training.epochs=3",
        "evaluation.pictures=false",
        "data.normalise=channels",
        "logging.tensorboard=false",
    ]
    settings += ["loss.reconstruction=0.0"]
    recipe = cr.training.load_recipe("quickstart", settings)
    cr.training.fit(None, None, recipe, folder, reporter=cr.training.SilentReporter())
    return folder


def test_the_stored_model_is_the_rounded_one_with_its_facts(run, tmp_path, monkeypatch):
    weights = bundle(run, "digits", folder=tmp_path, say=lambda text: None)
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    assert cr.models.pretrained_weights() == [weights]
    _, trained = cr.training.load_run(run)
    stored = cr.create_model(weights.model, pretrained="digits").state_dict()
    parameters = dict(trained.named_parameters())
    for name, tensor in trained.state_dict().items():
        expected = tensor.bfloat16().float() if name in parameters else tensor
        torch.testing.assert_close(stored[name], expected, rtol=0, atol=0)
    assert "preprocessing.mean" in stored
    assert weights.data == "digits"
    assert weights.classes == tuple("0123456789")
    assert weights.normalise[0][0] == pytest.approx(cr.data.load("digits").images.double().mean().item() / 255)
    assert weights.check["images"] == 359
    assert set(weights.check["stored"]) == {"as_trained", "fast", "uniform"}
    assert weights.has_master


def test_it_is_measured_with_its_normalisation(run, tmp_path):
    weights = bundle(run, "digits", folder=tmp_path, say=lambda text: None)
    assert weights.check["float32"] == pytest.approx(weights.accuracy["as_trained"], abs=0.3)


def test_fewer_images_are_said(run, tmp_path):
    assert bundle(run, "digits", images=20, folder=tmp_path, say=lambda text: None).check["images"] == 20


def test_weights_that_lose_accuracy_are_refused_and_nothing_is_left(run, tmp_path, monkeypatch):
    monkeypatch.setattr("tools.bundle.TOLERANCE", -101.0)
    with pytest.raises(ValueError, match="bfloat16 costs more than"):
        bundle(run, "digits", folder=tmp_path, say=lambda text: None)
    assert list(tmp_path.iterdir()) == []


def test_an_unfinished_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected result\.json"):
        bundle(tmp_path, "digits", folder=tmp_path)
