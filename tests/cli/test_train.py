"""`capsroute train`: the command a newcomer types first, and what it says when something is wrong."""

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tomli_w

from tests.cli.runs import call as run
from tests.training.processes import CONTEXT
from tests.training.tiny import tiny

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps({**tiny().plain(), "name": "mine"}))
    return path


def test_quickstart_needs_no_arguments(tmp_path, monkeypatch):
    """The whole of it, only shorter: 4 of 40 epochs teach the digits well enough to be seen."""
    monkeypatch.chdir(tmp_path)
    done = run("train", "--set", "training.epochs=4", "--set", "evaluation.speed_seconds=0.02")
    assert done.exit_code == 0, done.output
    for word in ("as trained", "master", "uniform", "images/s", "runs/quickstart"):
        assert word in done.output
    folder = tmp_path / "runs" / "quickstart"
    assert json.loads((folder / "result.json").read_text())["test"]["as_trained"]["accuracy"] > 0.8
    assert {"best", "figures", "report.md"} <= {path.name for path in folder.iterdir()}
    pictures = {path.stem for path in (folder / "figures").glob("*.png")}
    assert {"training", "reconstructions", "confusions"} <= pictures


@pytest.mark.slow
def test_quickstart_reaches_97_percent_within_two_minutes(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "capsroute", "train"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    tested = json.loads((tmp_path / "runs/quickstart/result.json").read_text())["test"]
    assert tested["as_trained"]["accuracy"] >= 0.97
    assert tested["fast"]["accuracy"] >= 0.97


def test_file_with_overrides_into_a_folder(recipe, tmp_path):
    done = run("train", recipe, "--set", "training.epochs=1", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "epochs = 1" in (tmp_path / "run" / "recipe.toml").read_text()


def test_folder_in_use_is_not_overwritten_and_can_be_resumed(recipe, tmp_path):
    folder = tmp_path / "run"
    assert run("train", recipe, "--out", folder).exit_code == 0
    again = run("train", recipe, "--out", folder)
    assert again.exit_code == 1
    assert "holds a run already; add --resume" in again.output
    assert "is a run folder; add --resume" in run("train", folder).output
    for arguments in (("train", folder, "--resume"), ("train", recipe, "--out", folder, "--resume")):
        resumed = run(*arguments)
        assert resumed.exit_code == 0, resumed.output
        assert "is finished: nothing to do" in resumed.output


def test_resuming_goes_on_with_the_recipe_of_the_run(recipe, tmp_path):
    folder = tmp_path / "run"
    steps = ["--set", "training.max_steps=7"]
    assert run("train", recipe, "--out", folder, "--set", "training.seed=3", *steps).exit_code == 0
    assert run("train", recipe, "--out", folder, "--resume", "--set", "training.max_steps=9").exit_code == 0
    assert "seed = 3" in (folder / "recipe.toml").read_text()


def test_several_seeds_are_summed_up(recipe, tmp_path):
    done = run("train", recipe, "--seeds", 2, "--set", "training.epochs=1", "--out", tmp_path / "runs")
    assert done.exit_code == 0, done.output
    assert "2 seeds" in done.output
    assert "spread" in done.output
    assert (tmp_path / "runs" / "seed-1" / "result.json").is_file()


def test_smoke_needs_no_data(tmp_path):
    done = run(
        "train", "tsai-cifar100-cnn", "--set", "model.arguments.channels=8", "--smoke", "--out", tmp_path / "run"
    )
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["steps"] == 2


def test_smoke_run_never_looks_like_a_result(recipe, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run(
        "train", recipe, "--smoke", "--set", "paper.title=T", "--set", "paper.row=R", "--set", "paper.published=99"
    )
    assert done.exit_code == 0, done.output
    assert "smoke test of mine passed" in done.output
    assert "published" not in done.output
    assert "%" not in done.output.splitlines()[-1]
    folder = Path("runs/smoke/mine")
    assert [path.name for path in Path("runs").iterdir()] == ["smoke"]
    assert json.loads((folder / "result.json").read_text())["smoke"] is True
    report = (folder / "report.md").read_text()
    assert report.startswith("# Smoke test of mine: two steps on noise, not a result")
    assert "accuracy" not in report
    assert "published" not in report
    assert not (folder / "looks.csv").exists()
    for arguments in ((folder, "--resume"), (recipe, "--out", folder, "--resume")):
        assert "two steps on noise, and cannot be gone on with" in run("train", *arguments).output
    assert "goes with neither" in run("train", recipe, "--smoke", "--resume").output
    assert "goes with neither" in run("train", recipe, "--smoke", "--seeds", 2).output
    compared = run("compare", folder)
    assert "left out: 1 smoke test(s)" in compared.output
    assert "left out: 1 smoke test(s)" in run("compare", "runs/smoke").output  # what runs/* means in a shell
    assert "mine" not in compared.output
    real = run("train", recipe, "--resume")
    assert real.exit_code == 0, real.output
    assert "starting anew" in real.output
    assert Path("runs/mine/result.json").is_file()


def test_finished_run_is_not_relabelled(recipe, tmp_path):
    folder = tmp_path / "run"
    assert run("train", recipe, "--out", folder).exit_code == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for change in ("optimiser.learning_rate=9.0", "model.arguments.routing=max_min"):
        done = run("train", folder, "--resume", "--set", change)
        assert done.exit_code == 1
        assert "start a new run" in done.output
        assert len(done.output.strip().splitlines()) == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def command(arguments, folder, said, number):
    """`python -m capsroute` in this process: its folder another, what it says in a file."""
    os.chdir(folder)
    signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)  # nohup ignores it
    sys.argv = ["capsroute", *arguments]
    with said.open("w") as errors, open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        runpy.run_module("capsroute", run_name="__main__")


@pytest.mark.parametrize(("name", "status"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_signal_ends_the_command_with_one_line_and_the_usual_status(recipe, tmp_path, name, status):
    arguments = ["train", str(recipe), "--out", "a run", "--set", "training.epochs=1000"]
    arguments += ["--set", "checkpoint.every_minutes=60"]
    said, number = tmp_path / "said", getattr(signal, name)
    process = CONTEXT.Process(target=command, args=(arguments, tmp_path, said, number))
    process.start()
    while not (tmp_path / "a run" / "metrics.csv").exists():
        assert process.is_alive()
        time.sleep(0.05)
    os.kill(process.pid, number)
    process.join()
    assert process.exitcode == status
    lines = said.read_text().strip().splitlines()
    assert lines == [f"stopped by {name}; `capsroute train 'a run' --resume` goes on from the last checkpoint"]
    assert max(path.stem for path in (tmp_path / "a run" / "checkpoints").glob("*.safetensors")) > "step-000000000"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nothing-like-it"], "recipe: expected a TOML file or a name"),
        (["quickstart", "--set", "training.epoch=3"], "did you mean 'epochs'?"),
        (["training.epochs=3"], "settings are given with --set"),
        (["quickstart", "--set", "model.arguments.channels=-3"], "model.arguments: 'capsnet_small' cannot be made of"),
        (["quickstart", "--set", "model.arguments.channels=x"], "model.arguments: 'capsnet_small' cannot be made of"),
    ],
)
def test_mistake_is_one_line_without_traceback(arguments, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run("train", *arguments)
    assert done.exit_code == 1
    assert "Traceback" not in done.output
    assert line in done.output
    assert len(done.output.strip().splitlines()) == 1


def test_loss_that_explodes_ends_with_a_message(recipe, tmp_path):
    huge = ["--set", "optimiser.learning_rate=1e30"]
    done = run("train", recipe, *huge, "--out", tmp_path / "run")
    assert done.exit_code == 1
    assert re.search(r"step \d+: the loss .*\. The last checkpoint is good\.", done.output), done.output


@pytest.mark.slow
def test_torchrun_trains_in_two_processes(recipe, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command += ["-m", "capsroute", "train", str(recipe), "--out", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("epoch 2/2") == 1  # only the first process talks
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["processes"] == 2
