"""Goals are judged by the numbers in the files."""

import csv
import math
from pathlib import Path

import pytest

from benchmarks.goals import growth, judge, page, slower


def write(path: Path, rows: list[dict]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path) -> Path:
    loop = {"case": "dynamic 1152x8 -> 10x16, batch 128", "dtype": "float32"}
    numbers = (("capsroute", 0.15, 1.0, 40), ("textbook", 1.7, 3.9, 390), ("textbook compiled", 1.2, 2.5, 390))
    keys = ("implementation", "graph_step_ms", "step_ms", "peak_mib")
    write(tmp_path / "paper-cuda.csv", [loop | dict(zip(keys, row)) for row in numbers])
    model = {"model": "capsnet", "changed": "", "peak_mib": 300}
    slow = {"precision": "float32", "compiled": "False", "graph_step_ms": 9}
    fast = {"precision": "bfloat16", "compiled": "True", "graph_step_ms": 2}
    large = {"precision": "float32", "compiled": "True", "graph_step_ms": 1, "peak_mib": 500}
    write(tmp_path / "models-cuda.csv", [model | slow, model | fast, model | large])
    return tmp_path


def verdicts(folder: Path) -> dict[str, tuple]:
    return {verdict.what: (verdict.measured, verdict.word) for verdict in judge(folder)}


def test_ratios_are_taken_against_the_right_form(folder):
    found = verdicts(folder)
    name = "dynamic 1152x8 -> 10x16, batch 128, tf32"
    assert found[f"{name}: faster than compiled, in graphs"] == (pytest.approx(8.0), "reached")
    assert found[f"{name}: less memory than compiled"] == (pytest.approx(9.75), "**not reached**")
    assert found[f"{name}: plain calls faster than eager"] == (pytest.approx(3.9), "**not reached**")


def test_a_model_is_judged_by_its_fastest_way_that_fits_and_that_way_is_named(folder):
    assert verdicts(folder)["capsnet training step (bfloat16, compiled)"] == (2.0, "reached")


def test_what_was_not_measured_is_said(folder):
    measured, word = verdicts(folder)["max_min 1152x8 -> 10x16, batch 512, bfloat16: less memory than compiled"]
    assert math.isnan(measured)
    assert word == "not measured"
    assert "not measured" in page(folder)


def test_where_the_textbook_form_is_faster_is_said(folder):
    with (folder / "paper-cuda.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert not slower(folder)
    rows[2]["step_ms"] = "0.9"
    write(folder / "paper-cuda.csv", rows)
    assert slower(folder) == [f"{rows[0]['case']}, float32, as plain calls: 1 ms against 0.9 ms (textbook compiled)"]


def test_growth_has_a_line_a_sweep(folder):
    row = {"algorithm": "dynamic", "axis": "batch", "implementation": "capsroute"}
    row |= {"time_exponent": 1, "memory_exponent": 0.5, "hardware": "chip", "note": ""}
    rows = [row | {"doublings": n} for n in range(3)]
    write(folder / "sweeps-cuda.csv", rows)
    line = "chip: dynamic, batch doubled 2 times, capsroute: time ~ size^1.00, memory ~ size^0.50"
    assert growth(folder) == [line]
    write(folder / "sweeps-cuda.csv", [*rows, row | {"doublings": 3, "note": "out of memory"}])
    assert growth(folder) == [f"{line}; doubled once more: out of memory"]


def test_what_was_not_measured_is_neither_faster_nor_slower(folder):
    case = {"case": "dynamic 512x16 -> 30000x16", "dtype": "float32", "peak_mib": 2000}
    rows = [("capsroute", "", 13.0), ("textbook", 60.0, ""), ("textbook compiled", "nan", 12.0)]
    keys = ("implementation", "graph_step_ms", "step_ms")
    write(folder / "large-cuda.csv", [case | dict(zip(keys, row)) for row in rows])
    assert [line for line in slower(folder) if "30000" in line] == [
        "dynamic 512x16 -> 30000x16, float32, as plain calls: 13 ms against 12 ms (textbook compiled)"
    ]
