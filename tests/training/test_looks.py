"""Looks at test data are counted, and validation data can stand in for them."""

import csv

import pytest

import capsroute as cr
from capsroute.training import load_recipe, load_splits
from capsroute.training.run_folder import record_look

QUICK = ["training.max_steps=1", "evaluation.pictures=false", "evaluation.speed_seconds=0"]


def fit(folder, *settings):
    return cr.training.fit(
        None, None, load_recipe("quickstart", [*QUICK, *settings]), folder, reporter=cr.training.SilentReporter()
    )


def test_a_run_writes_down_that_it_looked(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSROUTE_LOOKS", str(tmp_path / "all.csv"))
    monkeypatch.setenv("CAPSROUTE_REVISION", "abc")
    for seed in (0, 1):
        fit(tmp_path / f"run-{seed}", f"training.seed={seed}")
    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert [(row["recipe"], row["seed"], row["test"], row["revision"]) for row in rows] == [
        ("quickstart", "0", "digits", "abc"),
        ("quickstart", "1", "digits", "abc"),
    ]
    assert len((tmp_path / "run-1" / "looks.csv").read_text().splitlines()) == 2


def test_settings_are_chosen_on_validation_images_without_a_look(tmp_path):
    run = fit(tmp_path / "run", "evaluation.on='validation'")
    assert list(run.result["tests"]) == ["digits validation"]
    assert not (run.folder / "looks.csv").exists()
    splits = load_splits(load_recipe("quickstart", ["evaluation.on='validation'"]))
    assert splits.test["digits validation"] is splits.validation


def test_no_validation_images_are_no_excuse_to_test():
    with pytest.raises(ValueError, match=r"evaluation\.on: 'validation' needs data\.validation"):
        load_splits(load_recipe("quickstart", ["data.validation=false", "evaluation.on='validation'"]))


def test_a_look_at_a_run_that_cannot_be_written_to_warns_and_goes_on(tmp_path):
    (tmp_path / "run").touch()  # any failure to write, as on a disk that is only read
    with pytest.warns(UserWarning, match=r"looks\.csv: this look at test data could not be written down"):
        record_look(tmp_path / "run", load_recipe("quickstart"), ["digits"])
