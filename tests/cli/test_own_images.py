"""From a folder of one's own images to a network that is measured, drawn and exported, by command line alone."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from starlette.testclient import TestClient

import capsroute as cr
from capsroute.data.images.pictures import read_picture
from capsroute.explorer import server
from tests.cli.runs import run
from tests.data.images.shapes import CLASSES, make_shapes

pytestmark = pytest.mark.filterwarnings("ignore:the network classifies")

TINY = ["channels=8", "primary_capsules=4", "primary_stride=2", "class_pose=4", "decoder=[16, 16]"]
SETTINGS = [
    *(f"model.arguments.{argument}" for argument in TINY),
    "data.image_size=16",
    "optimiser.learning_rate=0.01",
    "training.epochs=8",
    "training.batch_size=16",
    "training.device=cpu",
    "training.threads=1",
    "checkpoint.every_steps=10",
    "evaluation.pictures=false",
    "evaluation.speed_seconds=0.0",
    "logging.tensorboard=false",
]


def settings(*more):
    return [word for setting in (*SETTINGS, *more) for word in ("--set", setting)]


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("own") / "shapes")


@pytest.fixture(scope="module")
def trained(shapes, tmp_path_factory):
    """A run of the default recipe on the folder, and what the command said."""
    folder = tmp_path_factory.mktemp("runs") / "shapes"
    status, said = run("train", "--data", shapes, "--out", folder, *settings())
    assert status == 0, said
    return folder, said


def accuracy(said, routing="as trained"):
    return float(re.search(rf"{routing}\W+([\d.]+)%", said)[1])


def test_training_says_what_it_found_and_learns_it(trained):
    _, said = trained
    assert "90 images of 3 classes (großes Quadrat, kreis, triangle)" in said
    assert "66 train, 6 validation, 18 test; cut with seed 0" in said
    assert "several sizes, scaled and cut to 16 x 16, colour" in said
    assert accuracy(said) > 60


def test_evaluate_measures_again_what_the_run_measured(trained):
    folder, said = trained
    status, again = run("evaluate", folder, "--device", "cpu")
    assert status == 0, again
    assert accuracy(again) == accuracy(said)
    assert "18" in again


def test_evaluate_on_other_images(trained, tmp_path):
    folder, _ = trained
    others = make_shapes(tmp_path / "others", 4, seed=1)
    status, said = run("evaluate", folder, "--data", others, "--routing", "as_trained", "--device", "cpu")
    assert status == 0, said
    assert re.search(r"others test.*\b12\b", said)
    (others / "kreis").rename(others / "egg")
    status, said = run("evaluate", folder, "--data", others, "--device", "cpu")
    assert status == 1
    assert "expected classes of großes Quadrat, kreis, triangle, found egg" in said
    status, said = run("evaluate", folder, "--data", "minst", "--device", "cpu")
    assert status == 1
    assert "did you mean 'mnist'" in said


def test_a_run_is_found_again_by_its_data_and_goes_on(trained, shapes, tmp_path, monkeypatch):
    whole, _ = trained
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole, tmp_path / "runs" / "images-shapes")
    (tmp_path / "runs" / "images-shapes" / "result.json").unlink()
    status, said = run("train", "--data", shapes, "--resume")
    assert status == 0, said
    assert "going on from step 32 of 32 in runs/images-shapes" in said


def test_images_that_moved_are_named_by_an_option(trained, tmp_path):
    whole, first = trained
    shutil.copytree(whole, tmp_path / "run")
    written = (tmp_path / "run" / "recipe.toml").read_text(encoding="utf-8")
    here = re.search(r'path = "(.*)"', written)[1]
    (tmp_path / "run" / "recipe.toml").write_text(written.replace(here, "/nowhere"), encoding="utf-8")
    status, said = run("evaluate", tmp_path / "run", "--device", "cpu")
    assert status == 1
    assert "'/nowhere' is not there any more; --data PATH says where the images are now" in said
    status, said = run("evaluate", tmp_path / "run", "--data", here, "--device", "cpu")
    assert status == 0, said
    assert accuracy(said) == accuracy(first)
    (tmp_path / "run" / "result.json").unlink()
    status, said = run("train", tmp_path / "run", "--resume", "--data", here)
    assert status == 0, said
    for command in ("accumulate", "figures"):
        more = ["--only", "class_probabilities", "--images", 9] if command == "figures" else ["--device", "cpu"]
        status, said = run(command, tmp_path / "run", "--data", here, *more)
        assert status == 0, said


def test_accumulate_then_evaluate_fast(trained):
    folder, _ = trained
    status, said = run("accumulate", folder, "--device", "cpu")
    assert status == 0, said
    assert "66 of 66 images" in said
    status, said = run("evaluate", folder, "--routing", "fast", "--device", "cpu")
    assert status == 0, said
    assert "master coefficients" in said


@pytest.fixture(scope="module")
def exported(trained):
    """The ONNX file that `export` writes into the folder of a run."""
    folder, _ = trained
    status, said = run("export", folder)
    assert status == 0, said
    return next((folder / "export").glob("*.onnx"))


def test_export_keeps_class_names(exported):
    written = json.loads(Path(f"{exported}.json").read_text())
    assert written["classes"] == list(CLASSES)


def test_figures(trained):
    folder, _ = trained
    status, said = run("figures", folder, "--only", "class_probabilities", "--images", 9)
    assert status == 0, said
    assert (folder / "figures" / "index.html").is_file()


def test_a_run_that_was_stopped_goes_on_from_the_folder_alone(trained, tmp_path):
    whole, _ = trained
    stopped = tmp_path / "stopped"
    shutil.copytree(whole, stopped)
    # As a run that was killed in its last epoch leaves it.
    for newest in (stopped / "checkpoints").glob("step-*32.*"):
        newest.unlink()
    (stopped / "result.json").unlink()
    status, said = run("train", stopped, "--resume")
    assert status == 0, said
    assert "going on from step 30 of 32" in said
    ours, theirs = (load_file(folder / "last" / "model.safetensors") for folder in (stopped, whole))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_predict_names_the_shapes_and_the_onnx_file_says_the_same(trained, exported, shapes, tmp_path):
    folder, _ = trained
    answers = []
    for number, source in enumerate((folder, exported)):
        status, said = run("predict", source, shapes, "--top", 2, "--csv", tmp_path / f"{number}.csv")
        assert status == 0, said
        assert "are of the class that their folder is called" in said
        with (tmp_path / f"{number}.csv").open(encoding="utf-8", newline="") as stream:
            answers.append(list(csv.DictReader(stream)))
    ours, theirs = answers
    assert len(ours) == 90
    assert {row["class"] for row in ours} <= set(CLASSES)
    for one, other in zip(ours, theirs):
        assert (one["file"], one["class"]) == (other["file"], other["class"])
        assert float(one["probability"]) == pytest.approx(float(other["probability"]), abs=1e-4)


def test_explore_shows_the_run_and_answers_for_its_pictures(trained, shapes, monkeypatch):
    folder, _ = trained
    served = {}
    monkeypatch.setattr(server, "serve", lambda networks, opened, host: (served.update(networks), opened.close()))
    status, said = run("explore", folder, "--port", 0, "--no-browser")
    assert status == 0, said
    [(name, network)] = served.items()
    assert network.classes == CLASSES
    assert set(network.labels) == set(CLASSES)  # pictures of the user's own to begin with
    picture = read_picture(next((shapes / "kreis").iterdir()), (16, 16), 3)
    client = TestClient(server.make_app(served), base_url="http://127.0.0.1:8765")
    answer = client.post(f"/networks/{name}/look?want=scores", content=picture.tobytes())
    assert answer.status_code == 200, answer.text
    expected = cr.load_model(folder)(torch.from_numpy(picture)[None]).scores[0]
    torch.testing.assert_close(torch.frombuffer(bytearray(answer.content), dtype=torch.float32), expected.detach())


@pytest.mark.slow
def test_two_processes_of_torchrun_with_shards_equal_one(shapes, tmp_path):
    status, said = run("data", "pack", shapes, tmp_path / "shapes", "--per-shard", 40)
    assert status == 0, said
    command = ["train", "--data", tmp_path / "shapes-{0000..0002}.tar", *settings("training.epochs=2")]
    stream = ["--set", "data.store=stream", "--set", "data.workers=1"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(Path(cr.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    two = [*torchrun, "-m", "capsroute", *map(str, command), *stream, "--out", str(tmp_path / "two")]
    done = subprocess.run(two, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    status, said = run(*command, "--set", "training.accumulate=2", "--out", tmp_path / "one")
    assert status == 0, said
    assert json.loads((tmp_path / "two" / "environment.json").read_text())["processes"] == 2
    ours, theirs = (load_file(tmp_path / name / "last" / "model.safetensors") for name in ("two", "one"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    tested = [json.loads((tmp_path / name / "result.json").read_text())["test"] for name in ("two", "one")]
    assert tested[0]["as_trained"]["accuracy"] == tested[1]["as_trained"]["accuracy"]
