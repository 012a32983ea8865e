"""Tables: mean, spread and n of the evidence; a row that falls short or was not run says so."""

import statistics
from pathlib import Path

from capsroute.reproduce import Evidence, Row, render
from capsroute.reproduce.tables import render_main


def evidence(seed, accuracy, **more):
    return Evidence(
        "r", seed, {"": {"as_trained": accuracy, **more}, "hard": {"as_trained": 12.0}}, 1000, 90.0, "gpu", Path()
    )


def line(row, runs, **others):
    return render([row], {"r": runs, **others}).splitlines()[-1]


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


def test_rows_that_must_be_better_than_others_say_whether_they_are():
    row = Row("zhao", "n", "r", above=("other",))
    assert "above `other` (98.00): yes" in line(row, [evidence(0, 99.0)], other=[evidence(0, 98.0)])
    assert "above `other` (99.00): **no**" in line(row, [evidence(0, 99.0)], other=[evidence(0, 99.0)])
    assert "| above `other` |" in line(row, [evidence(0, 99.0)])


def test_fast_rows_say_what_they_lose_against_dynamic_routing():
    row = Row("zhao", "n", "r", routing="fast", within=0.3)
    assert "loses 0.25 against dynamic, at most 0.3: yes" in line(row, [evidence(0, 99.0, fast=98.75)])
    assert "loses 0.50 against dynamic, at most 0.3: **no**" in line(row, [evidence(0, 99.0, fast=98.5)])


def test_comparisons_are_on_the_test_set_of_the_row():
    row = Row("zhao", "n", "r", test="hard", above=("other",))
    assert "above `other` (12.00): **no**" in line(row, [evidence(0, 99.0)], other=[evidence(0, 50.0)])


def test_the_short_table_has_the_main_rows_alone():
    rows = [Row("zhao", "shown", "r", main=True), Row("zhao", "hidden", "r"), Row("zhao", "not run", "none", main=True)]
    text = render_main(rows, {"r": [evidence(0, 99.0)]})
    assert "shown (Zhao et al. 2019)" in text
    assert "hidden" not in text
    assert "not run" not in text
