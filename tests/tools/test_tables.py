"""Tables: mean, spread and n of the evidence; a row that falls short or was not run says so."""

import statistics
from pathlib import Path

from capsroute.data import dataset_info
from capsroute.training import load_recipe
from tools.evidence import Evidence, collect, count_looks
from tools.rows import Row, all_rows
from tools.tables import COLUMNS, render, render_main
from tools.throughput import _network

RESULTS = Path(__file__).parents[2] / "results"


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
    assert "| 99.00 (once) |" in line(Row("zhao", "n", "r"), [evidence(0, 99.0)])


def test_a_goal_is_reached_by_the_mean_of_three_seeds_and_by_no_less():
    row = Row("zhao", "n", "r", goal=99.0)
    assert "≥ 99, **not reached**" in line(row, [evidence(0, 98.9)])
    assert "≥ 99, above it once" in line(row, [evidence(0, 99.1)])
    assert "≥ 99, above it (n=2)" in line(row, [evidence(0, 99.1), evidence(1, 99.0)])
    assert "≥ 99, reached" in line(row, [evidence(seed, 99.1) for seed in range(3)])


def test_without_a_goal_the_published_number_is_it():
    assert "≥ 99.5, **not reached**" in line(Row("zhao", "n", "r", published=99.5), [evidence(0, 99.0)])


def test_the_control_that_was_trained_without_routing_stands_beside():
    row = Row("zhao", "n", "r", without="plain")
    assert "| 99.00 (once) | - | 98.00 (once) |" in line(row, [evidence(0, 99.0)], plain=[evidence(0, 98.0)])
    assert "| 99.00 (once) | - | not run |" in line(row, [evidence(0, 99.0)])


def test_looks_at_the_test_set_are_shown():
    text = render([Row("zhao", "n", "r")], {"r": [evidence(0, 99.0)]}, {"r": 3}).splitlines()[-1]
    assert text.split(" | ")[8] == "3"


def test_fast_rows_read_the_fast_evaluation():
    text = line(Row("zhao", "n", "r", routing="fast"), [evidence(0, 99.0, fast=98.0, uniform=97.0)])
    assert "| 98.00 (once) | 97.00 (once) |" in text


def test_a_row_of_another_test_set_reads_that_one():
    assert "| 12.00 (once) |" in line(Row("zhao", "n", "r", test="hard"), [evidence(0, 99.0)])


def test_a_row_without_runs_says_not_run():
    assert "not run" in line(Row("zhao", "n", "r"), [])


def test_rows_that_must_be_better_than_others_say_whether_they_are():
    row = Row("zhao", "n", "r", above=("other",))
    assert "above `other` (98.00): yes" in line(row, [evidence(0, 99.0)], other=[evidence(0, 98.0)])
    assert "above `other` (99.00): **no**" in line(row, [evidence(0, 99.0)], other=[evidence(0, 99.0)])
    assert "| above `other` |" in line(row, [evidence(0, 99.0)])


def test_fast_rows_say_what_they_lose_against_the_network_as_trained():
    row = Row("zhao", "n", "r", routing="fast", within=0.3)
    assert "loses 0.25 against as trained, at most 0.3: yes" in line(row, [evidence(0, 99.0, fast=98.75)])
    assert "loses 0.50 against as trained, at most 0.3: **no**" in line(row, [evidence(0, 99.0, fast=98.5)])


def test_comparisons_are_on_the_test_set_of_the_row():
    row = Row("zhao", "n", "r", test="hard", above=("other",))
    assert "above `other` (12.00): **no**" in line(row, [evidence(0, 99.0)], other=[evidence(0, 50.0)])


def test_the_short_table_has_the_main_rows_alone_missing_ones_too():
    rows = [Row("zhao", "shown", "r", main=True), Row("zhao", "hidden", "r"), Row("zhao", "not run", "none", main=True)]
    text = render_main(rows, {"r": [evidence(0, 99.0)]})
    assert "shown (Zhao et al. 2019)" in text
    assert "hidden" not in text
    assert "not run (Zhao et al. 2019) | - | not run" in text


def test_a_network_without_routing_lacks_no_control():
    assert "| 99.00 (once) | - | has no routing |" in line(Row("zhao", "n", "r", plain=True), [evidence(0, 99.0)])


def test_a_fast_row_stands_beside_the_control_as_that_was_trained():
    row = Row("zhao", "n", "r", routing="fast", without="plain")
    runs = [evidence(0, 99.0, fast=98.0, uniform=97.0)]
    assert "| 98.00 (once) | 97.00 (once) | 96.00 (once) |" in line(row, runs, plain=[evidence(0, 96.0)])


def test_a_number_that_cannot_be_read_and_a_recipe_that_is_not_there_are_said():
    text = line(Row("tsai", "n", source="figure 4", said="not readable", no_recipe="lost"), [])
    assert text.startswith("| n | figure 4 | not readable | none: lost | not run |")


def test_every_line_of_the_tables_has_what_a_sceptic_asks_for():
    rows, runs, looks = all_rows(RESULTS / "rows.toml"), collect(RESULTS), count_looks(RESULTS)
    for row in rows:
        cells = dict(zip(COLUMNS, render([row], runs, looks).splitlines()[-1].strip("| ").split(" | "), strict=True))
        assert all(cells.values()), row.name
        assert cells["recipe"].startswith(("the paper's", "ours", "none: "))
        ran = cells["as trained (mean ± spread, n)"]
        if ran == "not run":
            continue
        assert ran.endswith("(once)") or (" ± " in ran and "(n=" in ran), row.name
        assert int(cells["looks at the test set"]) >= 1, row.name
        assert cells["time to train"] != "-", row.name


def test_the_readme_shows_seeds_or_says_once_and_hides_no_miss():
    rows = [row for row in all_rows(RESULTS / "rows.toml") if row.main]
    lines = render_main(rows, collect(RESULTS)).splitlines()[2:]
    assert {row.paper for row in rows} == {"sabour", "zhao", "zhao-huang", "tsai", "heinsen"}
    assert all("(once)" in line or "(n=3)" in line for line in lines)
    assert sum("not reached" in line for line in lines) >= 1


def test_a_row_that_was_not_run_says_how_long_it_would_take():
    speeds = {_network(load_recipe("quickstart")): {"images_per_second": "100", "hardware": "gpu"}}
    recipe = load_recipe("quickstart")
    seconds = round(recipe.training.epochs * dataset_info("digits").sizes["train"] / 100)
    text = render([Row("zhao", "n", "quickstart", note="not run")], {}, {}, speeds)
    assert f"would take {seconds // 60} min {seconds % 60} s a seed, at 100 images/s on gpu" in text
