"""Tables: mean, spread and n of the evidence; a row that falls short or was not run says so."""

import statistics
from pathlib import Path

from capsroute.reproduce import Evidence, Row, render, write_tables

REPOSITORY = Path(__file__).parents[2]


def evidence(seed, accuracy, **more):
    return Evidence(
        "r", seed, {"": {"dynamic": accuracy, **more}, "hard": {"dynamic": 12.0}}, 1000, 90.0, "gpu", Path()
    )


def line(row, runs):
    return render([row], {"r": runs}).splitlines()[-1]


def test_mean_spread_and_n_are_of_the_runs():
    values = [99.0, 99.2, 99.7]
    text = line(Row("zhao", "n", "r", published=99.55), [evidence(i, v) for i, v in enumerate(values)])
    assert f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f} (n=3)" in text
    assert "1 min 30 s" in text
    assert "1,000" in text


def test_a_single_seed_has_no_spread():
    assert "| 99.00 (n=1) |" in line(Row("zhao", "n", "r"), [evidence(0, 99.0)])


def test_a_goal_that_is_missed_is_said():
    assert "not reached" in line(Row("zhao", "n", "r", goal=99.5), [evidence(0, 99.0)])
    assert ", reached" in line(Row("zhao", "n", "r", goal=99.0), [evidence(0, 99.0)])


def test_fast_rows_read_the_fast_evaluation():
    text = line(Row("zhao", "n", "r", routing="fast"), [evidence(0, 99.0, fast=98.0, uniform=97.0)])
    assert "| 98.00 (n=1) | 97.00 (n=1) |" in text


def test_a_row_of_another_test_set_reads_that_one():
    assert "| 12.00 (n=1) |" in line(Row("zhao", "n", "r", test="hard"), [evidence(0, 99.0)])


def test_a_row_without_runs_says_not_run():
    assert "not run" in line(Row("zhao", "n", "r"), [])


def test_the_committed_table_is_what_the_committed_runs_give(tmp_path):
    results = REPOSITORY / "results"
    for name in ("rows.toml", "PREFACE.md"):
        (tmp_path / name).write_text((results / name).read_text())
    (tmp_path / "runs").symlink_to(results / "runs")
    assert write_tables(tmp_path).read_text() == (results / "README.md").read_text()
