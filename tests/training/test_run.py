"""A run, opened: every piece is loaded once and when asked for; its variants; what older folders say."""

import json

import pytest
import torch

import capsroute as cr
from capsroute.training import Run, RunFolder
from tests.training.tiny import train

# So short a training teaches little, which accumulating coefficients remarks on.
pytestmark = pytest.mark.filterwarnings("ignore:the network classifies")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("run") / "one")


def test_it_is_the_run_that_was_trained(trained):
    run = Run(trained.folder)
    images = torch.rand(3, *run.model.input_shape)
    assert torch.equal(run.model(images).scores, trained.model.cpu()(images).scores)
    assert run.recipe.plain() == RunFolder(trained.folder).recipe().plain()
    assert not run.model.training


def test_data_are_loaded_when_they_are_needed(trained, monkeypatch):
    loaded = []
    monkeypatch.setattr("capsroute.training.run.load_splits", lambda *a: loaded.append(a))
    run = Run(trained.folder)
    assert run.classes == tuple("0123456789")
    assert "uniform" in run.variants()
    assert not loaded


def test_what_is_given_is_not_loaded(trained, tmp_path):
    model, recipe = trained.model, Run(trained.folder).recipe
    run = Run(tmp_path, recipe=recipe, model=model)
    assert run.model is model
    assert run.recipe is recipe


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"run: expected a run folder with a recipe.toml"):
        _ = Run(tmp_path).model
    with pytest.raises(ValueError, match=r"run: expected a run folder with a recipe.toml"):
        _ = Run(tmp_path / "nowhere").master


def test_variants_are_the_model_and_its_controls(trained):
    run = Run(trained.folder)
    assert list(run.variants()) == ["as_trained", "uniform"]
    assert run.refusals == {"fast": "there are no master coefficients"}
    run.accumulate()
    variants = run.variants()
    assert list(variants) == ["as_trained", "fast", "uniform"]
    assert variants["as_trained"] is run.model
    assert torch.equal(variants["fast"].class_capsules.routing.coefficients, run.master["class_capsules"].float())
    assert variants["uniform"].class_capsules.routing.coefficients.unique().numel() == 1
    assert not run.folder.master.exists()


def test_a_network_that_does_not_route_has_one_variant(trained):
    model = cr.create_model("tsai_cnn", **cr.models.small_options("tsai_cnn"))
    run = Run(trained.folder, model=model)
    assert list(run.variants()) == ["as_trained"]
    assert run.refusals["uniform"] == "the model has no layer that routes"
    assert run.accumulate() is None


def test_results_of_older_versions_are_read_by_the_new_name(tmp_path):
    tested = {"dynamic": {"accuracy": 0.5}, "uniform": {"accuracy": 0.4}}
    (tmp_path / "result.json").write_text(json.dumps({"test": tested, "tests": {"mnist": tested}}))
    result = RunFolder(tmp_path).read("result.json")
    new = {"as_trained": {"accuracy": 0.5}, "uniform": {"accuracy": 0.4}}
    assert result == {"test": new, "tests": {"mnist": new}}
