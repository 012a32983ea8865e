"""Packaged weights fed plain images: from `create_model`, from picture files and from an exported file, one answer."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import capsroute as cr
from capsroute.cli.app import app
from capsroute.data import ImageSet
from capsroute.models import pretrained_weights

ALL = pytest.mark.parametrize("weights", pretrained_weights(), ids=lambda weights: weights.tag)


def call(*arguments):
    done = CliRunner().invoke(app, list(map(str, arguments)))
    assert done.exit_code == 0, done.output
    return done.output


def write_pictures(images, folder):
    """`folder/CLASS/NUMBER.png`."""
    for number, (image, label) in enumerate(zip(images.images.numpy(), images.labels.tolist())):
        file = folder / images.classes[label] / f"{number:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0)).save(file, compress_level=1)


def classes_in(table):
    """Number of the picture -> class that was named."""
    with table.open(encoding="utf-8", newline="") as stream:
        return {int(row["file"].rsplit("/", 1)[1][:5]): row["class"] for row in csv.DictReader(stream)}


def named(model, images):
    with torch.no_grad():
        found = torch.cat([model(some).scores.argmax(1) for some in images.split(100)])
    return {number: model.classes[label] for number, label in enumerate(found.tolist())}


@ALL
def test_picture_files_are_what_the_model_is_fed(weights, tmp_path):
    model = cr.create_model(weights.model, pretrained=weights.tag)
    generator = torch.Generator().manual_seed(0)
    coarse = torch.rand(12, model.input_shape[0], 5, 5, generator=generator)
    if model.input_shape[0] == 1:
        coarse[:, :, [0, -1]] = coarse[:, :, :, [0, -1]] = 0  # drawn light on dark, as it knows it
    images = (torch.nn.functional.interpolate(coarse, model.input_shape[1:]) * 255).to(torch.uint8)
    write_pictures(ImageSet(images, torch.arange(12) % 10, weights.classes), tmp_path / "pictures")
    call("predict", weights.tag, tmp_path / "pictures", "--csv", tmp_path / "named.csv")
    assert classes_in(tmp_path / "named.csv") == named(model, images)


def test_an_exported_file_reads_digits_as_the_model_does(tmp_path):
    from pathlib import Path

    import capsroute.explorer

    with np.load(Path(capsroute.explorer.__file__).parent / "samples" / "mnist.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), torch.from_numpy(stored["labels"]).long()
    write_pictures(ImageSet(images, labels, tuple("0123456789")), tmp_path / "digits")
    call("export", "mnist-max-min", "--out", tmp_path / "digits.onnx")
    said = call("predict", tmp_path / "digits.onnx", tmp_path / "digits", "--csv", tmp_path / "named.csv")
    assert classes_in(tmp_path / "named.csv") == named(cr.load_model("mnist-max-min"), images)
    assert f"{len(images)} of {len(images)} (100.00%)" in said


@pytest.mark.slow
@ALL
def test_ten_thousand_test_images_give_the_published_accuracy(weights, tmp_path):
    """To 0.2 points, from create_model, from `capsroute predict` on picture files, and from the ONNX file."""
    test = cr.data.load(weights.data, "test")
    assert len(test) == 10_000
    write_pictures(test, tmp_path / "pictures")
    call("export", weights.tag, "--out", tmp_path / "model.onnx")
    found = {"create_model": named(cr.create_model(weights.model, pretrained=weights.tag), test.images)}
    for name, source in (("predict", weights.tag), ("onnx", tmp_path / "model.onnx")):
        call("predict", source, tmp_path / "pictures", "--csv", tmp_path / f"{name}.csv")
        found[name] = classes_in(tmp_path / f"{name}.csv")
    for name, answers in found.items():
        right = sum(answers[number] == weights.classes[label] for number, label in enumerate(test.labels.tolist()))
        assert abs(right / 100 - weights.accuracy["as_trained"]) <= 0.2, f"{name}: {right / 100:.2f} %"
