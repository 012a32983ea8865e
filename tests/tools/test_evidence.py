"""Evidence: small files of finished runs, kept whole, read back, refused when incomplete."""

import json

import pytest

from tools.evidence import collect, count_looks, keep, main


def write_run(folder, recipe="zhao-mnist", seed=0, accuracy=0.99, **changes):
    folder.mkdir(parents=True)
    result = {
        "recipe": recipe,
        "seed": seed,
        "test": {"dynamic": {"accuracy": accuracy}, "uniform": {"accuracy": 0.5}},
        "tests": {"mnist": {"dynamic": {"accuracy": accuracy}}, "affnist": {"dynamic": {"accuracy": 0.25}}},
        "parameters": 1234,
        "train_seconds": 61.0,
    } | changes
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "environment.json").write_text(json.dumps({"hardware": "a machine"}))
    (folder / "recipe.toml").write_text("")
    (folder / "metrics.csv").write_text("epoch\n")
    return folder


def test_kept_runs_are_collected_by_recipe_in_order_of_seed(tmp_path):
    for seed in (2, 0, 1):
        keep(write_run(tmp_path / f"run{seed}", seed=seed), tmp_path / "results")
    found = collect(tmp_path / "results")
    assert [run.seed for run in found["zhao-mnist"]] == [0, 1, 2]
    assert found["zhao-mnist"][0].accuracy[""] == {"as_trained": pytest.approx(99.0), "uniform": 50.0}
    assert found["zhao-mnist"][0].accuracy["affnist"] == {"as_trained": 25.0}


def test_keeping_again_replaces_the_older_evidence(tmp_path):
    keep(write_run(tmp_path / "first", accuracy=0.5), tmp_path / "results")
    keep(write_run(tmp_path / "second", accuracy=0.75), tmp_path / "results")
    assert [run.accuracy[""]["as_trained"] for run in collect(tmp_path / "results")["zhao-mnist"]] == [75.0]


def test_an_unfinished_run_is_no_evidence(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "metrics.csv").unlink()
    with pytest.raises(ValueError, match=r"metrics\.csv missing"):
        keep(run, tmp_path / "results")
    assert collect(tmp_path / "results") == {}


def test_a_result_without_a_key_names_it(tmp_path):
    run = write_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    del result["parameters"]
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(ValueError, match="parameters"):
        keep(run, tmp_path / "results")


def test_looks_are_only_ever_added(tmp_path):
    for when in ("1", "2"):
        run = write_run(tmp_path / when)
        (run / "looks.csv").write_text(
            f"when,recipe,seed,test,revision\n{when},zhao-mnist,0,mnist,\n{when},zhao-mnist,0,hard,\n"
        )
        keep(run, tmp_path / "results")
        keep(run, tmp_path / "results")
    assert len((tmp_path / "results/looks.csv").read_text().splitlines()) == 5
    assert count_looks(tmp_path / "results") == {"zhao-mnist": 2}
    assert count_looks(tmp_path) == {}


def test_all_runs_of_a_folder_are_kept_by_one_command(tmp_path, monkeypatch, capsys):
    for seed in (0, 1):
        write_run(tmp_path / "evidence" / f"zhao-mnist-seed-{seed}", seed=seed)
    (tmp_path / "evidence" / "unfinished").mkdir()
    monkeypatch.setattr("sys.argv", ["evidence", str(tmp_path / "evidence"), "--results", str(tmp_path / "results")])
    main()
    assert [run.seed for run in collect(tmp_path / "results")["zhao-mnist"]] == [0, 1]
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_a_folder_without_a_finished_run_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["evidence", str(tmp_path), "--results", str(tmp_path / "results")])
    with pytest.raises(SystemExit):
        main()
    assert "no finished run" in capsys.readouterr().err
