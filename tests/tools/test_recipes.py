"""A committed run was made by the recipe of its name as it is today: the command in the table makes the row again."""

from pathlib import Path

import pytest

from capsroute.training import load_recipe

REPOSITORY = Path(__file__).parents[2]
RUNS = sorted((REPOSITORY / "results" / "runs").glob("*/seed-*/recipe.toml"))
# How a step is executed, and what is written beside the weights, may change without changing what is learned.
EXECUTION = {"seed", "device", "threads", "compile", "cuda_graphs", "channels_last", "sharding", "max_steps"}


def what_is_learned(recipe):
    sections = recipe.plain()
    sections["model"].get("arguments", {}).pop("backend", None)
    learned = {name: sections.get(name) for name in ("model", "data", "loss", "optimiser", "schedule", "text")}
    training = {key: value for key, value in sections["training"].items() if key not in EXECUTION}
    return {**learned, "training": training}


@pytest.mark.parametrize("path", RUNS, ids=lambda path: "/".join(path.parts[-3:-1]))
def test_committed_run_is_of_todays_recipe(path):
    today = what_is_learned(load_recipe(path.parts[-3]))
    assert what_is_learned(load_recipe(path)) == today
