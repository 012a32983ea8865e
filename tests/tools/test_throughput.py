"""Speeds of recipes: measured for one and for two labels, read back, and turned into the length of a run."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

from capsroute.training import load_recipe
from capsroute.training.smoke import smoke_recipe
from tools.throughput import FIELDS, _network, expected, measure, read_speeds

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["sabour-mnist", "sabour-multimnist", "tsai-em-iterations-2"])
def test_steps_of_a_recipe_are_timed(name):
    assert measure(smoke_recipe(load_recipe(name), small=True), CPU, steps=1) > 0


def test_a_run_takes_its_epochs_at_the_speed_of_its_network(tmp_path):
    recipe = load_recipe("sabour-mnist")
    path = tmp_path / "speeds.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([FIELDS, ["sabour-mnist", _network(recipe), 128, "fp32", 5000, "gpu", "abc"]])
    found = expected("sabour-mnist", read_speeds(path))
    assert found.seconds == recipe.training.epochs * 60_000 / 5000


def test_another_network_has_no_speed(tmp_path):
    speeds = {_network(load_recipe("sabour-mnist")): {"images_per_second": "5000", "hardware": "gpu"}}
    assert expected("sabour-mnist-1-iteration", speeds) is None


def test_a_network_that_was_not_timed_has_the_speed_of_a_run_of_the_same_model(tmp_path):
    folder = tmp_path / "runs" / "sabour-mnist-fast" / "seed-0"
    shutil.copytree(RESULTS / "runs" / "sabour-mnist-fast" / "seed-0", folder)
    rows = (folder / "metrics.csv").read_text().splitlines()
    place = rows[0].split(",").index("images_per_second")
    fastest = max(float(row.split(",")[place]) for row in rows[1:])
    found = expected("sabour-mnist-1-iteration", read_speeds(tmp_path / "throughput.csv"))
    assert (found.like, found.images_per_second) == ("sabour-mnist-fast", fastest)
    assert expected("tsai-cifar10-resnet18", read_speeds(tmp_path / "throughput.csv")) is None


def test_no_file_is_no_speeds(tmp_path):
    assert read_speeds(tmp_path / "none.csv") == {}
