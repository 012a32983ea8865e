import json
import subprocess
import sys
import zipfile

import numpy as np
import onnxruntime
import pytest
import torch

import capsroute as cr
from capsroute.inference.exported_programs import Predictor, run_exported
from tests.inference.networks import TwoLayers

CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
BATCHES = (1, 2, 33)

# What a stranger's program would do; capsroute is not there.
FRESH = """
import json, sys, torch
assert "capsroute" not in sys.modules
format, given, answers, *paths = sys.argv[1:]
inputs, found = torch.load(given, weights_only=True), []
for path in paths:
    if format == "pt2":
        files = {"capsroute.json": ""}
        module = torch.export.load(path, extra_files=files).module()
        metadata = files["capsroute.json"]
    else:
        module = torch._inductor.aoti_load_package(path)
        metadata = module.get_metadata()["capsroute"]
    found.append([list(module(images)) for images in inputs])
    print(metadata)
torch.save(found, answers)
assert "capsroute" not in sys.modules
"""


def make(kind):
    torch.manual_seed(0)
    routing = "dynamic" if "softmax" in kind else "max_min"
    model = cr.create_model("capsnet_small", image_size=8, routing=routing, std=1.0).eval()
    if not kind.startswith("folded"):
        return model
    return cr.inference.fold(model, {"class_capsules": torch.rand(32, 10)})


def inputs(channels=1, side=8):
    generator = torch.Generator().manual_seed(7)
    return [torch.rand(batch, channels, side, side, generator=generator) for batch in BATCHES]


def assert_agree(model, found, images=None):
    for batch, outputs in zip(images or inputs(), found):
        with torch.no_grad():
            expected = model(batch)
        torch.testing.assert_close(torch.as_tensor(outputs[0]), expected.scores, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.as_tensor(outputs[1]), expected.poses, rtol=0, atol=1e-5)


def run_onnx(path, images=None):
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return [session.run(None, {"images": batch.numpy()}) for batch in images or inputs()]


def run_fresh(format, paths, folder):
    """What each file answers in one process that has no capsroute, and its metadata."""
    torch.save(inputs(), folder / "inputs")
    command = [sys.executable, "-c", FRESH, format, str(folder / "inputs"), str(folder / "outputs"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()[-len(paths) :]
    return zip(torch.load(folder / "outputs", weights_only=True), map(json.loads, said))


@pytest.fixture(scope="module")
def folded_onnx(tmp_path_factory):
    """An ONNX file of a folded network with all that goes along, in a folder that was not there."""
    path = tmp_path_factory.mktemp("folded") / "new" / "digits.onnx"
    return cr.inference.export(make("folded"), path, classes=CLASSES, normalise=([0.5], [0.25]))


def test_onnx_agrees_with_the_model(tmp_path):
    model = make("max-min")
    exported = cr.inference.export(model, tmp_path / "digits.onnx")
    assert_agree(model, run_onnx(exported.path))
    assert exported.largest_difference <= 1e-5


def test_onnx_of_variational_bayes_whose_digamma_onnx_has_not_agrees(tmp_path):
    model = cr.create_model("capsnet_small", image_size=8, routing="vb").eval()
    assert_agree(model, run_onnx(cr.inference.export(model, tmp_path / "digits.onnx").path))


def test_folded_onnx_agrees_with_the_model(folded_onnx):
    assert_agree(make("folded"), run_onnx(folded_onnx.path))
    assert folded_onnx.largest_difference <= 1e-5


def test_onnx_of_no_images_is_refused_before_onnxruntime_dies_of_it(folded_onnx):
    run, _ = run_exported(folded_onnx.path)
    with pytest.raises(ValueError, match="images: expected one or more, got none"):
        run(torch.rand(0, 1, 8, 8))


def test_pt2_agrees_with_the_model_in_a_fresh_process_without_capsroute(tmp_path):
    models = {kind: make(kind) for kind in ("max-min", "folded")}
    normalise = ([0.1], [0.3])
    made = [cr.inference.export(models[kind], tmp_path / f"{kind}.pt2", normalise=normalise) for kind in models]
    answers = run_fresh("pt2", [exported.path for exported in made], tmp_path)
    for model, exported, (found, metadata) in zip(models.values(), made, answers, strict=True):
        assert_agree(model, found)
        assert metadata == exported.metadata
        assert metadata["input"]["normalise"] == {"mean": [0.1], "std": [0.3]}


@pytest.mark.parametrize("kind", ["max-min", "softmax", "folded"])
def test_pt2_of_no_images_is_no_scores(kind, tmp_path):
    model, none = make(kind), [torch.rand(0, 1, 8, 8)]
    module = torch.export.load(cr.inference.export(model, tmp_path / "digits.pt2").path).module()
    assert_agree(model, [module(images) for images in none], none)


def test_pt2_does_not_depend_on_where_a_convolution_leaves_its_output(tmp_path):
    options = {"image_size": 20, "backbone": {"name": "simple", "channels": 4}, "convolutions": ((4, 3, 1),)}
    model = cr.create_model("tsai_multimnist_vector", **options, primary_capsules=4, pose=8).eval()
    exported = cr.inference.export(model, tmp_path / "digits.pt2")  # tries a batch of one, where it lies otherwise
    images = [torch.rand(batch, 1, 20, 20) for batch in (0, 1, 2)]
    assert_agree(model, map(torch.export.load(exported.path).module(), images), images)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["max-min", "softmax", "folded"])
def test_aoti_package_agrees_with_the_model_in_a_fresh_process_without_capsroute(kind, tmp_path):
    model = make(kind)
    exported = cr.inference.export(model, tmp_path / "digits.pt2", format="aoti")
    [(found, metadata)] = run_fresh("aoti", [exported.path], tmp_path)
    assert_agree(model, found)
    assert metadata == exported.metadata


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "pt2"])
@pytest.mark.parametrize(
    ("make_model", "side"),
    [
        (lambda: make("softmax"), 8),
        (lambda: TwoLayers("max_min"), 7),
        (lambda: TwoLayers("inverted_attention", schedule="concurrent"), 7),
        (lambda: cr.inference.fold(TwoLayers("dynamic"), "uniform"), 7),
        (lambda: cr.create_model("capsnet", routing="max_min"), 28),
    ],
    ids=["softmax", "convolutional", "concurrent", "folded convolutional", "capsnet"],
)
def test_other_networks_agree(make_model, side, format, tmp_path):
    torch.manual_seed(0)
    model = make_model().eval()
    model.score_kind = "length"
    exported = cr.inference.export(model, tmp_path / f"network.{format}")
    images = inputs(side=side)
    if format == "onnx":
        assert_agree(model, run_onnx(exported.path, images), images)
    else:
        module = torch.export.load(exported.path).module()
        assert_agree(model, [module(batch) for batch in images], images)


@pytest.mark.parametrize("kind", ["max-min", "folded"])
def test_safetensors_make_the_model_again(kind, tmp_path):
    model = make(kind)
    exported = cr.inference.export(model, tmp_path / "digits.safetensors", classes=CLASSES)
    again = cr.inference.load_exported(exported.path)
    assert_agree(model, [again(batch) for batch in inputs()])
    assert again(inputs()[0]).reconstruction is not None


def test_safetensors_of_learned_coefficients(tmp_path):
    fast = cr.inference.with_coefficients(make("max-min"), {"class_capsules": torch.rand(32, 10)}, learned=True)
    exported = cr.inference.export(fast, tmp_path / "digits.safetensors")
    assert exported.metadata["inference"] == "fast"
    assert_agree(fast, [cr.inference.load_exported(exported.path)(batch) for batch in inputs()])


def test_metadata_go_along(folded_onnx):
    folder = folded_onnx.path.parent
    inside = onnxruntime.InferenceSession(str(folded_onnx.path)).get_modelmeta().custom_metadata_map["capsroute"]
    beside = json.loads((folder / "digits.onnx.json").read_text())
    assert json.loads(inside) == beside == folded_onnx.metadata
    assert beside["classes"] == CLASSES
    assert beside["input"] == {
        "name": "images",
        "shape": ["batch", 1, 8, 8],
        "range": [0.0, 1.0],
        "normalise": {"mean": [0.5], "std": [0.25]},
    }
    assert (beside["inference"], beside["opset"], beside["outputs"]) == ("folded", 18, ["scores", "poses"])
    assert sorted(entry.name for entry in folder.iterdir()) == ["digits.onnx", "digits.onnx.json"]


def test_a_file_that_computes_something_else_is_not_left_behind(tmp_path, monkeypatch):
    forward = Predictor.forward
    calls = []

    def drifting(self, images):
        calls.append(1)
        return tuple(output + len(calls) for output in forward(self, images))

    monkeypatch.setattr(Predictor, "forward", drifting)
    with pytest.raises(RuntimeError, match="differs from the model by"):
        cr.inference.export(make("folded"), tmp_path / "digits.safetensors")
    assert not list(tmp_path.iterdir())


def test_leaves_the_model_as_it_was(tmp_path):
    model = make("max-min").train()
    cr.inference.export(model, tmp_path / "digits.safetensors")
    assert model.training
    assert model.decoder is not None


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("digits.bin", {}, "format: expected one of onnx, pt2, aoti, safetensors, got a file named 'digits.bin'"),
        ("digits.onnx", {"format": "tflite"}, "format: expected one of .* got 'tflite'"),
        ("digits.onnx", {"format": "pt2"}, "path: expected a name that ends in '.pt2' for pt2, got 'digits.onnx'"),
        ("digits.onnx", {"classes": ["a"]}, "classes: expected 10 names, one for each class of the model, got 1"),
        ("digits.onnx", {"normalise": ([0, 0], [1, 1])}, "normalise: expected mean and std of 1 channels"),
        ("digits.onnx", {"opset": 11}, "opset: expected one that .* can write this network in, such as 18, got 11"),
    ],
)
def test_refuses(name, options, says, tmp_path):
    with pytest.raises(ValueError, match=says):
        cr.inference.export(make("folded"), tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_machine_code_and_damaged_files_are_told_apart_in_one_line(tmp_path, capfd):
    with zipfile.ZipFile(tmp_path / "digits.aoti.pt2", "w") as package:  # as torch lays it out
        package.writestr("digits/data/aotinductor/model/code.cpp", "")
    with pytest.raises(ValueError, match=r"found machine code \(aoti\); torch\._inductor\.aoti_load_package runs it"):
        run_exported(tmp_path / "digits.aoti.pt2")
    (tmp_path / "cut.pt2").write_bytes((tmp_path / "digits.aoti.pt2").read_bytes()[:60])
    (tmp_path / "cut.onnx").write_bytes(b"nothing")
    for name in ("cut.pt2", "cut.onnx"):
        with pytest.raises(ValueError, match=f"{name}: expected a file that `capsroute export` wrote, found another"):
            run_exported(tmp_path / name)
    assert "Traceback" not in capfd.readouterr().err


def test_load_refuses_other_files(tmp_path):
    from safetensors.numpy import save_file

    with pytest.raises(ValueError, match="found no such file"):
        cr.inference.load_exported(tmp_path / "none")
    save_file({"weight": np.ones(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="expected weights that `export` wrote, found others"):
        cr.inference.load_exported(tmp_path / "weights")
    (tmp_path / "cut").write_bytes(b"12345678{")
    with pytest.raises(ValueError, match="found a damaged one"):
        cr.inference.load_exported(tmp_path / "cut")
