"""What every command understands: `--import` of a module of the user's own, `--version`, completion, near names."""

import os
import re
import subprocess
import sys
from contextlib import suppress

import pytest
from typer.testing import CliRunner

import capsroute as cr
from capsroute.cli.app import app
from capsroute.data import datasets
from capsroute.models import unregister_model
from tests.cli.runs import run

MODULE = """
import torch
import capsroute as cr


def read(info, folder, split):
    images = torch.arange(20)[:, None, None, None].expand(20, 1, 8, 8).to(torch.uint8)
    return cr.data.ImageSet(images, torch.arange(20) % 2, info.classes, info.name, split)


@cr.models.register_model
def NAME_network(**options):
    return cr.models.CapsNet(**{"channels": 4, "kernel_size": 3, "primary_kernel": 3, "decoder": None, **options})


sizes = {"train": 20, "validation": 20, "test": 20}
cr.data.register(cr.data.DatasetInfo("NAME_data", "Mine", ("a", "b"), (1, 8, 8), sizes, "mine", "here", read=read))
"""
RECIPE = """
model.name = "NAME_network"
data.name = "NAME_data"
training = { max_steps = 1, device = "cpu", threads = 1, batch_size = 10 }
evaluation = { pictures = false, speed_seconds = 0.0 }
logging.tensorboard = false
"""


@pytest.fixture
def name(tmp_path, monkeypatch):
    """The name of a module in the current folder: another for each test, as what is registered stays so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE.replace("NAME", name))
    (tmp_path / "mine.toml").write_text(RECIPE.replace("NAME", name))
    yield name
    datasets._REGISTRY.pop(f"{name}_data", None)
    with suppress(ValueError):
        unregister_model(f"{name}_network")


def test_own_model_and_data_set_can_be_named(name, tmp_path):
    status, said = run("train", "mine.toml", "--out", "run", "--import", name)
    assert status == 0, said
    status, said = run("--import", name, "evaluate", "run", "--device", "cpu")
    assert status == 0, said
    assert f"{name}_data test" in said


def test_without_import_the_names_are_not_known(name):
    status, said = run("train", "mine.toml", "--out", "run")
    assert status == 1
    assert f"{name}_network" in said or f"{name}_data" in said


def test_module_that_is_not_there_is_named():
    status, said = run("data", "list", "--import=no_such_module")
    assert status == 1
    assert "--import: no module 'no_such_module'" in said


def test_a_fault_of_the_module_itself_is_not_hidden(name, tmp_path):
    (tmp_path / f"{name}.py").write_text("import something_it_lacks")
    done = CliRunner().invoke(app, ["--import", name, "data", "list"])
    assert isinstance(done.exception, ModuleNotFoundError)
    assert done.exception.name == "something_it_lacks"


def test_version():
    assert run("--version") == (0, f"capsroute {cr.__version__}\n")


def test_help_is_written_where_there_is_nothing_but_ascii():
    command = [sys.executable, "-m", "capsroute", "--help"]
    env = os.environ | {"PYTHONIOENCODING": "ascii:strict", "COLUMNS": "200"}
    done = subprocess.run(command, capture_output=True, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    assert b"mean \\xb1 spread" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_a_shell_is_written(shell, monkeypatch):
    # A shell that is named, not the one that tests happen to run in: there may be none.
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = CliRunner().invoke(app, ["--show-completion", shell], prog_name="capsroute")
    assert done.exit_code == 0
    assert f"_CAPSROUTE_COMPLETE=complete_{shell}" in done.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tra"], "train"),
        (["train", "sabour-mn"], "sabour-mnist"),
        (["train", "--da"], "--data"),
        (["predict", "mnist-m"], "mnist-max-min"),
        (["export", "cifar10-r"], "cifar10-routing-pooling"),
        (["models", "capsnet_sm"], "capsnet_small"),
        (["data", "fetch", "fash"], "fashion_mnist"),
    ],
)
def test_a_shell_completes_commands_options_and_names(words, expected):
    line = {"COMP_WORDS": " ".join(["capsroute", *words]), "COMP_CWORD": str(len(words))}
    asked = {**line, "_CAPSROUTE_COMPLETE": "complete_bash"}
    done = CliRunner().invoke(app, [], prog_name="capsroute", env=asked)
    assert expected in done.output.split()


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["trian"], "train"),
        (["train", "--dta", "x"], "--data"),
        (["train", "sabour-minst"], "sabour-mnist"),
        (["train", "--set", "trainin.epochs=3"], "training"),
        (["train", "--set", "model.arguments.routing=dynamc"], "dynamic"),
        (["models", "capsnt_small"], "capsnet_small"),
        (["data", "fetch", "minst"], "mnist"),
        (["explore", "mnist-maxmin"], "mnist-max-min"),
        (["export", "mnist-maxmin"], "mnist-max-min"),
        (["predict", "mnist-maxmin", "."], "mnist-max-min"),
    ],
)
def test_unknown_names_are_answered_with_the_nearest(words, near, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said = run(*words)
    assert status != 0
    assert re.search(rf"(?is)(did you mean|possible options:).*{near}", said)
    assert "Traceback" not in said
