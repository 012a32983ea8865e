"""Speeds of recipes: measured for one and for two labels, read back, and turned into the length of a run."""

import csv
import shutil
from pathlib import Path

import pytest
import torch

from capsroute.training import load_recipe
from tests.training.tiny import small_smoke
from tools.throughput import FIELDS, OPERATIONS, _network, expected, gigaflop, measure, read_speeds

CPU = torch.device("cpu")
RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("name", ["sabour-mnist", "sabour-multimnist", "tsai-em-iterations-2"])
def test_steps_of_a_recipe_are_timed(name):
    assert measure(small_smoke(load_recipe(name)), CPU, steps=1) > 0


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


def test_a_network_of_which_nothing_is_known_takes_between_the_slowest_and_the_fastest_by_its_operations(tmp_path):
    timed = {"sabour-mnist": 100.0, "sabour-mnist-1-iteration": 400.0, "zhao-mnist-without-routing-fast": 1e6}  # bf16
    unknown = "tsai-cifar10-resnet18"
    with (tmp_path / "speeds.csv").open("w", newline="") as file:
        rows = [[name, _network(load_recipe(name)), 128, "-", speed, "gpu", "abc"] for name, speed in timed.items()]
        csv.writer(file).writerows([FIELDS, *rows])
    with (tmp_path / OPERATIONS).open("w", newline="") as file:
        rows = [[name, _network(load_recipe(name)), 2.0 if name in timed else 8.0] for name in (*timed, unknown)]
        csv.writer(file).writerows([("recipe", "network", "gigaflop"), *rows])
    found = expected(unknown, read_speeds(tmp_path / "speeds.csv"))
    images = load_recipe(unknown).training.epochs * 50_000
    assert (found.seconds, found.at_best) == (images / 25, images / 100)  # four times the operations, in float32 too


def test_operations_are_those_of_the_products():
    conv1, conv2, votes = 20 * 20 * 256 * 81, 6 * 6 * 256 * 81 * 256, 1152 * 8 * 160
    assert gigaflop(load_recipe("sabour-mnist-1-iteration-no-reconstruction")) == pytest.approx(
        2e-9 * (conv1 + conv2 + votes), rel=0.01
    )


def test_no_file_is_no_speeds(tmp_path):
    assert read_speeds(tmp_path / "none.csv") == {}
