"""`capsroute slots`: a run from a recipe, with a picture of what each slot draws."""

import json

from tests.cli.runs import call

RECIPE = """
data_options = { cell = 1, count = 24 }
batch_size = 4
device = "cpu"
model = { features = 8, channels = 4, hidden = 8, kernel_size = 3 }
"""


def test_a_run_leaves_its_result_and_a_picture(tmp_path):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    out = tmp_path / "run"
    done = call("slots", tmp_path / "tiny.toml", "--steps", 2, "--out", out)
    assert done.exit_code == 0, done.output
    assert "foreground ARI" in done.output
    assert json.loads((out / "result.json").read_text())["steps"] == 2
    assert (out / "slots.png").is_file()


def test_a_run_leaves_those_before_it_alone(tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    for seed in (1, 2):
        done = call("slots", "tiny.toml", "--steps", 1, "--seed", seed)
        assert done.exit_code == 0, done.output
    folders = ["runs/slots-tiny", "runs/slots-tiny-2"]
    assert [json.loads((tmp_path / folder / "recipe.json").read_text())["seed"] for folder in folders] == [1, 2]
    again = call("slots", "tiny.toml", "--steps", 1, "--out", "runs/slots-tiny")
    assert again.exit_code == 1
    assert "folder: 'runs/slots-tiny' holds a run already; name another" in " ".join(again.output.split())


def test_an_unknown_recipe_is_a_message():
    done = call("slots", "tetrahedra")
    assert done.exit_code == 1
    assert "one of shapes, tetrominoes-cpu, tetrominoes" in " ".join(done.output.split())
