import json

import pytest
import torch

import capsroute as cr
from capsroute.inference.exporting import Exported
from tests.cli.runs import call, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("run"))


def test_weights_as_trained_are_the_runs(run):
    result = call("export", run, "--format", "safetensors")
    assert result.exit_code == 0, result.output
    model, images = cr.training.load_run(run)[1], torch.rand(3, 1, 8, 8)
    again = cr.inference.load_exported(run / "export" / "as_trained.safetensors")
    assert torch.equal(again(images).scores, model(images).scores)


@pytest.mark.parametrize("routing", ["fast", "uniform"])
def test_given_coefficients_are_folded_in(run, routing, tmp_path):
    model = cr.training.load_run(run)[1]
    matrix = torch.rand(128, 10, dtype=torch.float64)
    cr.inference.MasterCoefficients({"class_capsules": matrix}, torch.ones(10).long()).save(run / "master.safetensors")
    path = tmp_path / "mine.pt2"
    result = call("export", run, "--format", "pt2", "--routing", routing, "--out", path)
    assert result.exit_code == 0, result.output
    given = {"class_capsules": matrix} if routing == "fast" else "uniform"
    expected = cr.inference.with_coefficients(model, given)
    images = torch.rand(3, 1, 8, 8)
    found = torch.export.load(path).module()(images)[0]
    torch.testing.assert_close(found, expected(images).scores, rtol=0, atol=1e-5)
    assert json.loads((tmp_path / "mine.pt2.json").read_text())["inference"] == "folded"


def test_machine_code_gets_a_name_of_its_own_beside_the_program(run, monkeypatch):
    made = []

    def export(model, path, format, opset):
        made.append((format, path.relative_to(run).as_posix()))
        return Exported(path, {"inference": "as trained"}, 0.0)

    monkeypatch.setattr("capsroute.cli.export.export", export)
    for format in ("pt2", "aoti"):
        assert call("export", run, "--format", format).exit_code == 0
    assert made == [("pt2", "export/as_trained.pt2"), ("aoti", "export/as_trained.aoti.pt2")]


def test_the_old_word_for_out_is_taken_and_warns(run, tmp_path):
    with pytest.warns(
        DeprecationWarning, match="--output is deprecated since capsroute 0.2 and goes in 0.4; write --out"
    ):
        assert call("export", run, "--format", "safetensors", "--output", tmp_path / "there.safetensors").exit_code == 0
    assert (tmp_path / "there.safetensors").is_file()


def test_class_names_and_normalisation_of_the_run_go_along(tmp_path):
    run = make_run(tmp_path / "run", "data.normalise='channels'", "loss.reconstruction=0.0")
    assert call("export", run, "--format", "safetensors").exit_code == 0
    about = json.loads((run / "export" / "as_trained.safetensors.json").read_text())
    train = cr.data.load("digits", "train").images.double() / 255
    assert about["preprocessing"]["mean"] == pytest.approx([float(train.mean())], abs=1e-6)
    assert about["preprocessing"]["deviation"] == pytest.approx([float(train.std(correction=0))], abs=1e-6)
    assert about["input"]["normalise"] is None  # the file does it itself
    assert about["classes"] == list(cr.data.dataset_info("digits").classes)


def test_packaged_weights_go_by_their_tag(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, images = cr.create_model("capsnet_max_min", pretrained=True), torch.rand(3, 1, 28, 28)
    master = cr.inference.pretrained_coefficients("capsnet_max_min")
    for routing, expected in (("as_trained", model), ("fast", cr.inference.with_coefficients(model, master))):
        result = call("export", "mnist-max-min", "--format", "safetensors", "--routing", routing)
        assert result.exit_code == 0, result.output
        again = cr.inference.load_exported(tmp_path / f"mnist-max-min-{routing}.safetensors")
        torch.testing.assert_close(again(images).scores, expected(images).scores)
    wrong = call("export", "cifar10-routing-pooling", "--routing", "fast")
    assert "fast needs master coefficients, and 'cifar10-routing-pooling' has none" in wrong.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--format", "tflite"], "--format: expected one of onnx, pt2, aoti, safetensors, got 'tflite'"),
        (["--routing", "slow"], "--routing: expected one of as_trained, fast, uniform, got 'slow'"),
        (["--routing", "fast"], "`capsroute accumulate"),
    ],
)
def test_says_what_is_wrong(run, arguments, says):
    (run / "master.safetensors").unlink(missing_ok=True)
    result = call("export", run, *arguments)
    assert result.exit_code == 1
    assert says in result.output.replace("\n", " ")
