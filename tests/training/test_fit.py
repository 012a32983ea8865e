"""`fit` as a function: what it takes, what it leaves behind."""

import importlib
import json
import statistics

import pytest
import torch
from safetensors.torch import load_file

import capsroute as cr
from capsroute.models import create_model, load_model
from capsroute.training import RunFolder, SilentReporter, Splits, fit, load_run
from tests.training.tiny import tiny, tiny_model, train

fit_module = importlib.import_module("capsroute.training.fit")  # the function hides it

# So short a training teaches little, which accumulating coefficients remarks on.
pytestmark = pytest.mark.filterwarnings("ignore:the network classifies")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    shown = {"evaluation.pictures": True, "evaluation.fast": True}
    return train(tmp_path_factory.mktemp("run"), **shown, **{"training.epochs": 3, "optimiser.learning_rate": 0.03})


def test_run_folder_is_complete(run):
    expected = ["recipe.toml", "environment.json", "metrics.csv", "result.json", "report.md"]
    expected += [f"figures/{name}.png" for name in ("training", "reconstructions", "confusions", "master_matrix")]
    expected += ["master.safetensors", "best", "last"]
    assert not [name for name in expected if not (run.folder / name).exists()]


def test_environment_says_what_was_used(run):
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["versions"]["torch"] == importlib.metadata.version("torch")
    assert environment["device"] == "cpu"
    assert "cores" in environment["hardware"]
    assert environment["capsroute"] == cr.__version__


def test_metrics_have_a_line_an_epoch(run):
    rows = RunFolder(run.folder).read_metrics()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert [row["step"] for row in rows] == [6, 12, 18]
    assert rows[-1]["validation_accuracy"] == pytest.approx(run.history[-1]["validation_accuracy"], rel=1e-6)


def test_best_weights_are_those_of_the_best_validation(run):
    best = max(run.history, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]))
    assert run.result["best_epoch"] == best["epoch"]
    recipe, model = load_run(run.folder)
    batches = cr.data.Batches(cr.data.load("digits", "validation"), 200, shuffle=False)
    assert cr.training.evaluate(model, batches)["accuracy"] == best["validation_accuracy"]
    assert recipe.training.epochs == 3


def test_test_set_is_measured_with_every_routing(run):
    assert set(run.result["test"]) == {"as_trained", "fast", "uniform"}
    assert all(metrics["images"] == 359 for metrics in run.result["test"].values())
    batches = cr.data.Batches(cr.data.load("digits", "test"), 200, shuffle=False)
    assert cr.training.evaluate(run.model, batches)["accuracy"] == run.accuracy


def test_report_shows_numbers_and_pictures(run):
    text = (run.folder / "report.md").read_text()
    assert f"{run.accuracy:.2%}" in text
    assert "(figures/training.png)" in text
    assert "(figures/confusions.png)" in text


def test_without_validation_the_last_weights_are_kept(tmp_path):
    run = train(tmp_path, **{"data.validation": False})
    best, last = load_model(tmp_path / "best").state_dict(), load_model(tmp_path / "last").state_dict()
    assert all(torch.equal(best[key], last[key]) for key in best)
    assert run.result["validation_accuracy"] is None
    assert "the last epoch" in (tmp_path / "report.md").read_text()


def test_model_and_data_of_ones_own(tmp_path):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (60, 3, 9, 9), dtype=torch.uint8, generator=generator)
    pets = cr.data.ImageSet(pixels, torch.arange(60) % 2, ("cat", "dog"))
    model = create_model("capsnet_small", in_channels=3, image_size=9, num_classes=2)
    recipe = {"training": {"epochs": 1, "batch_size": 20}, "evaluation": {"pictures": False}}
    run = fit(model, Splits(pets, test={"pets": pets}), recipe, tmp_path, reporter=SilentReporter())
    assert run.model is model
    assert run.result["tests"].keys() == {"pets"}


def test_images_and_a_list_of_labels_are_data(tmp_path):
    images = torch.rand(24, 1, 9, 9, generator=torch.Generator().manual_seed(0))
    model = create_model("capsnet_small", in_channels=1, image_size=9, num_classes=3)
    recipe = {"training": {"epochs": 1, "batch_size": 12}, "evaluation": {"pictures": False}}
    run = fit(model, (images, [0, 1, 2] * 8), recipe, tmp_path, reporter=SilentReporter())
    assert run.model.preprocessing.classes == ("0", "1", "2")


@pytest.mark.parametrize("data", [torch.rand(4, 1, 9, 9), "photos", {"images": None}])
def test_what_is_no_data_is_named(data, tmp_path):
    model = create_model("capsnet_small", image_size=9, num_classes=3)
    with pytest.raises(TypeError, match=f"data: expected Splits .* got {type(data).__name__}"):
        fit(model, data, {"training": {"epochs": 1}}, tmp_path, reporter=SilentReporter())


def test_same_seed_same_run_and_callers_randomness_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = train(tmp_path / "one")
    assert torch.equal(torch.rand(3), expected)
    two = train(tmp_path / "two")
    other = train(tmp_path / "other", **{"training.seed": 1})
    losses = [[row["train_loss"] for row in run.history] for run in (one, two, other)]
    assert losses[0] == losses[1]
    assert losses[0] != losses[2]


def test_accumulation_gives_the_gradient_of_the_whole_batch(tmp_path):
    changes = {"training.max_steps": 3, "optimiser": {"name": "sgd", "learning_rate": 0.1}}
    whole = train(tmp_path / "one", **changes)
    # Three parts of 67, 67 and 66 images: each must count by its size.
    parts = train(tmp_path / "two", **changes, **{"training.accumulate": 3})
    for one, two in zip(whole.model.state_dict().values(), parts.model.state_dict().values()):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("changes", [{"training.precision": "bf16"}, {"training.channels_last": True}])
def test_speed_options_train_on_the_cpu(tmp_path, changes):
    run = train(tmp_path, **changes)
    assert run.history[-1]["train_loss"] < run.history[0]["train_loss"]


def test_averaged_weights_are_the_ones_that_are_kept(tmp_path):
    run = train(tmp_path, **{"training.ema": 0.9})
    state = RunFolder(tmp_path).checkpoints.load()
    kept = load_model(tmp_path / "last").state_dict()
    assert all(torch.equal(kept[key], state["average"][f"module.{key}"]) for key in kept)
    assert any(not torch.equal(kept[key], state["model"][key]) for key in kept)
    assert run.result["validation_accuracy"] is not None


def test_a_folded_model_is_tuned_and_its_weights_are_kept(tmp_path):
    folded = cr.inference.fold(tiny_model(), "uniform")
    run = train(tmp_path, folded, **{"training.epochs": 1})
    kept = load_file(tmp_path / "best" / "model.safetensors")
    assert all(torch.equal(kept[name], tensor) for name, tensor in run.model.state_dict().items())
    with pytest.raises(ValueError, match=r"expected config.json and model.safetensors in .*, found no config.json"):
        load_run(tmp_path)


def test_three_seeds_give_mean_and_spread_and_only_what_is_missing_is_run_again(tmp_path, monkeypatch):
    recipe = tiny(**{"training.epochs": 1, "training.seed": 4})
    summary = fit_module.fit_seeds(recipe, 3, tmp_path)
    values = summary["tests"]["digits"]["as_trained"]["values"]
    assert summary["seeds"] == [4, 5, 6]
    assert len(set(values)) > 1
    assert summary["tests"]["digits"]["as_trained"]["mean"] == pytest.approx(sum(values) / 3)
    assert summary["tests"]["digits"]["as_trained"]["spread"] == pytest.approx(statistics.stdev(values))
    assert json.loads((tmp_path / "summary.json").read_text()) == summary

    trained = []

    def watched(model, data, recipe, folder, **options):
        trained.append(recipe.training.seed)
        return fit(model, data, recipe, folder, **options)

    monkeypatch.setattr(fit_module, "fit", watched)
    (tmp_path / "seed-5" / "result.json").unlink()
    assert fit_module.fit_seeds(recipe, 3, tmp_path, resume=True)["tests"]["digits"]["as_trained"]["values"] == values
    assert trained == [5]


def test_model_with_fewer_classes_than_the_data_is_refused(tmp_path):
    model = create_model("capsnet_small", image_size=8, num_classes=7)
    with pytest.raises(ValueError, match="labels: the model has 7 classes, those of 'train' go up to 9"):
        train(tmp_path, model, **{"loss.reconstruction": 0.0})
    assert list(tmp_path.iterdir()) == []
