"""`capsroute predict`: pictures in, lines and a CSV out."""

import csv
import os
import re
import subprocess
import sys

import pytest
import torch
from PIL import Image

import capsroute as cr
from tests.cli.runs import call as command


def call(*arguments):
    return command("predict", *arguments)


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(0)
    model = cr.create_model("capsnet_small", in_channels=3, image_size=8, num_classes=2, decoder=None)
    model.set_preprocessing(classes=["dark", "light"])
    cr.save_model(model, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pictures(tmp_path):
    for folder, grey in (("dark", 10), ("light", 240), ("purple", 100)):
        (tmp_path / "pictures" / folder).mkdir(parents=True)
        Image.new("RGB", (20, 30), (grey, grey, grey)).save(tmp_path / "pictures" / folder / "one.png")
    return tmp_path / "pictures"


def test_files_and_folders_are_named_with_probabilities(saved, pictures, tmp_path):
    one = pictures / "dark" / "one.png"
    result = call(saved, one, "--top", 2, "--csv", tmp_path / "out.csv")
    assert result.exit_code == 0
    [expected] = cr.predict(cr.load_model(saved), one, top=2)
    assert result.stdout == (
        f"{one}: {expected.classes[0]} {expected.probabilities[0]:.1%}, "
        f"{expected.classes[1]} {expected.probabilities[1]:.1%}\n"
    )
    [header, row] = csv.reader((tmp_path / "out.csv").open())
    assert header == ["file", "class", "probability", "class_2", "probability_2", "problem"]
    assert row[:2] == [str(one), expected.label]
    assert float(row[2]) == pytest.approx(expected.probability, abs=1e-6)


def test_names_that_are_not_utf_8_are_said_and_written(saved, pictures, tmp_path):
    (pictures / "dark" / "one.png").rename(pictures / "dark" / os.fsdecode(b"caf\xe9.png"))
    command = [sys.executable, "-m", "capsroute", "predict", saved, pictures / "dark", "--csv", tmp_path / "out.csv"]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "utf-8:strict"}, timeout=600
    )
    assert done.returncode == 0, done.stderr
    assert b"caf\\udce9.png: " in done.stdout
    assert b"caf\xe9.png," in (tmp_path / "out.csv").read_bytes()


def test_folders_called_like_classes_are_counted_and_others_named(saved, pictures):
    result = call(saved, pictures)
    right = sum(one.label in one.source for one in cr.predict(cr.load_model(saved), pictures))
    assert f"{right} of 2 ({right / 2:.2%}) are of the class that their folder is called" in result.output
    assert re.search(r"purple: no class of the model is called 'purple'", result.output)


def test_pictures_deep_in_a_class_folder_are_of_that_class_as_in_training(saved, pictures):
    (pictures / "dark" / "of" / "2024").mkdir(parents=True)
    (pictures / "dark" / "one.png").rename(pictures / "dark" / "of" / "2024" / "one.png")
    [deep, _, _] = cr.predict(cr.load_model(saved), pictures)
    result = call(saved, pictures / "dark")
    assert f"{int(deep.label == 'dark')} of 1 " in result.output
    assert "2024" not in result.stderr


def test_a_bad_file_is_named_and_counted_or_stops(saved, pictures):
    (pictures / "bad.png").write_bytes(b"nothing")
    result = call(saved, pictures)
    assert result.exit_code == 0
    assert "bad.png: expected a picture, found something that cannot be decoded\n" in result.output
    assert "1 of 4 files left out" in result.output
    assert call(saved, pictures, "--strict").exit_code == 1
    alone = call(saved, pictures / "bad.png")
    assert alone.exit_code == 1
    assert "none of the files is a picture" in alone.output


def test_weights_of_the_package_go_by_their_tag(tmp_path):
    Image.new("L", (40, 40), 255).save(tmp_path / "blank.png")
    assert call("mnist-max-min", tmp_path / "blank.png").exit_code == 0


def test_a_file_in_the_way_is_one_line(saved, pictures, tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file" / "out.csv", pictures):
        result = call(saved, pictures / "dark" / "one.png", "--csv", out)
        assert result.exit_code == 1
        assert "Nothing can be written there" in result.output
        assert "Traceback" not in result.output
