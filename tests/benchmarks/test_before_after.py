"""Rows of two benchmarks, side by side."""

import csv

import pytest

from benchmarks.before_after import against_textbook, before_after

LAYER = {"case": "dynamic, batch 8", "dtype": "float32", "implementation": "capsroute"}


def write(path, rows):
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folders(tmp_path):
    for name, graph, plain, mib in (("before", "2.0", "9", "100"), ("after", "4.0", "8", "50")):
        ours = {**LAYER, "graph_step_ms": graph, "step_ms": plain, "peak_mib": mib}
        textbook = {**ours, "implementation": "textbook", "step_ms": "18"}
        alone = {**ours, "case": f"only {name}"}
        write(tmp_path / name / "paper-cuda.csv", [ours, textbook, alone])
        folded = {"batch": 1, "dtype": "float32", "folded_ms": plain, "graph_folded_ms": ""}
        write(tmp_path / name / "folded-cpu.csv", [folded])
    return tmp_path / "before", tmp_path / "after"


def test_rows_of_both_are_compared_by_their_graphs_or_plain_calls(folders):
    lines = before_after(*folders).splitlines()
    assert "| folded, 1, float32, cpu | 9 | 8 | 1.12 | - | - |" in lines
    assert "| dynamic, batch 8, float32, cuda | 2 | 4 | 0.50 | 100 | 50 |" in lines
    assert len(lines) == 2 + 2 + 2  # heading, rows of both, what became slower


def test_what_became_slower_is_named(folders):
    assert before_after(*folders).endswith("2 rows, 1 slower by more than 5 %: dynamic, batch 8, float32, cuda.")


def test_only_the_wanted_suites(folders):
    assert "folded" not in before_after(*folders, ["paper"])
    with pytest.raises(SystemExit, match="no file"):
        before_after(*folders, ["conv"])


def test_speed_against_the_textbook_form_of_the_same_run(folders):
    assert "| dynamic, batch 8, float32, cuda | 2.00 | 2.25 |" in against_textbook(*folders).splitlines()


def test_one_size_in_two_sweeps_is_two_rows(tmp_path):
    for name, times in (("before", ("1", "2")), ("after", ("1", "2"))):
        rows = [
            {**LAYER, "axis": axis, "iterations": t, "step_ms": ms, "graph_step_ms": ""}
            for (axis, t), ms in zip((("iterations", "16"), ("parents", "2")), times)
        ]
        write(tmp_path / name / "sweeps-cuda.csv", rows)
    assert "2 rows, 0 slower" in before_after(tmp_path / "before", tmp_path / "after")
