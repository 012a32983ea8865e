"""`capsroute evaluate`, `report` and `compare`: what can be done with finished runs."""

import json
import shutil

import pytest

from tests.cli.runs import call
from tests.training.tiny import train

# So short a training teaches little, which accumulating coefficients remarks on.
pytestmark = pytest.mark.filterwarnings("ignore:the network classifies")


def run(*arguments):
    return call(*arguments, COLUMNS="200")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "one"
    return train(folder, **{"optimiser.learning_rate": 0.03, "training.epochs": 3})


def test_evaluate_measures_again_what_the_run_measured(trained):
    done = run("evaluate", trained.folder, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert f"{trained.accuracy:.2%}" in done.output
    assert "uniform coefficients" in done.output


def test_evaluate_writes_down_that_it_looked_at_test_data(trained):
    looks = trained.folder / "looks.csv"
    before = looks.read_text().splitlines()
    for split, lines in (("validation", 0), ("test", 1)):
        done = run("evaluate", trained.folder, "--split", split, "--routing", "uniform", "--device", "cpu")
        assert done.exit_code == 0, done.output
        assert len(looks.read_text().splitlines()) == len(before) + lines
    assert looks.read_text().splitlines()[-1].split(",")[1:4] == before[-1].split(",")[1:4]


def test_evaluate_makes_master_coefficients_when_asked(trained):
    done = run("evaluate", trained.folder, "--routing", "fast", "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "master coefficients" in done.output
    assert "as trained" not in done.output


def test_evaluate_on_another_split(trained):
    done = run("evaluate", trained.folder, "--split", "validation", "--routing", "as_trained", "--device", "cpu")
    assert f"{trained.result['validation_accuracy']:.2%}" in done.output


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--routing", "magic"], "expected one of as_trained, fast, uniform, all"),
        (["--split", "holdout"], "--split: expected"),
        (["--data", "photos"], "--data: no images at 'photos', nor a name that `capsroute data list` shows"),
        (["--data", "digit"], "nor a name that `capsroute data list` shows; did you mean 'digits'?"),
    ],
)
def test_evaluate_names_what_it_cannot_do(trained, arguments, line):
    done = run("evaluate", trained.folder, *arguments)
    assert done.exit_code != 0
    assert line in done.output


def test_report_can_be_written_again(trained):
    (trained.folder / "report.md").unlink()
    environment = json.loads((trained.folder / "environment.json").read_text())
    command = ["capsroute", "train", "--out", "a run"]
    (trained.folder / "environment.json").write_text(json.dumps(environment | {"command": command}))
    done = run("report", trained.folder)
    assert done.exit_code == 0, done.output
    assert f"{trained.accuracy:.2%}" in (trained.folder / "report.md").read_text()
    assert "`capsroute train --out 'a run'`" in (trained.folder / "report.md").read_text()


def test_compare_shows_runs_beside_each_other(trained, tmp_path):
    other = train(tmp_path / "two", **{"training.epochs": 1})
    done = run("compare", trained.folder, other.folder)
    assert done.exit_code == 0, done.output
    header, *lines = done.output.splitlines()
    assert "as trained (%)" in header
    assert "training (s)" in header
    for result, line in zip((trained, other), [line for line in lines if "parameters" not in line]):
        assert str(result.folder) in line
        assert f" {100 * result.accuracy:.2f} " in line


def test_compare_shows_mean_and_spread_of_seeds(trained, tmp_path):
    for seed, accuracy in ((0, 0.5), (1, 0.75), (10, 1.0)):
        shutil.copytree(trained.folder, tmp_path / "mine" / f"seed-{seed}")
        path = tmp_path / "mine" / f"seed-{seed}" / "result.json"
        result = json.loads(path.read_text())
        result["test"]["as_trained"]["accuracy"] = accuracy
        result["validation_accuracy"] = accuracy - 0.5  # one is 0, which is an accuracy too
        path.write_text(json.dumps(result))
    (tmp_path / "mine" / "seed-11").mkdir()  # begun, not finished
    done = run("compare", tmp_path / "mine")
    assert done.exit_code == 0, done.output
    assert "25.00 ± 25.00" in done.output
    assert "75.00 ± 25.00" in done.output
    assert "3 seeds" in done.output


def test_compare_fits_eighty_columns_and_cuts_nothing(trained, tmp_path):
    long = tmp_path / ("a-name-that-is-longer-than-a-line-" * 3)
    shutil.copytree(trained.folder, long)
    done = call("compare", long, COLUMNS="80")
    assert all(len(line) <= 80 for line in done.output.splitlines())
    assert "…" not in done.output
    assert f"{100 * trained.accuracy:.2f}" in done.output


def test_folder_that_is_no_run_is_named(tmp_path):
    for command in ("evaluate", "report", "compare"):
        done = run(command, tmp_path)
        assert done.exit_code == 1
        assert "expected a run folder" in done.output
