"""What a benchmark writes down."""

import csv
import math

import pytest
import torch

from capsroute.bench.cases import Case
from capsroute.bench.measure import Row, as_dicts, implementations, measure_case, read_rows
from capsroute.bench.suites import draw, table, write_csv

CASE = Case("dynamic", "test", 2, 6, 3, k=4, o=4)


@pytest.fixture(scope="module")
def rows():
    return list(measure_case(CASE, torch.float32, "cpu", implementations(CASE, compiled=False)))


def test_both_implementations_are_timed_and_close_to_float64(rows):
    assert [row.implementation for row in rows] == ["capsroute", "textbook"]
    for row in rows:
        assert row.forward_ms > 0
        assert row.step_ms > 0
        assert 0 < row.error_poses < 1e-5
        assert 0 < row.error_gradients < 1e-5
        assert math.isnan(row.graph_step_ms)


def test_the_table_says_how_many_times_slower_the_textbook_is(rows):
    rows[0].step_ms, rows[1].step_ms = 2.0, 5.0
    lines = table(rows).splitlines()
    assert len(lines) == 3
    assert "5.000 (2.5x)" in lines[2]


def test_the_csv_names_hardware_and_versions(rows, tmp_path):
    write_csv(as_dicts(rows, "cpu"), tmp_path / "new" / "rows.csv")
    with (tmp_path / "new" / "rows.csv").open() as file:
        first, second = csv.DictReader(file)
    assert first["torch"] == torch.__version__
    assert first["hardware"]
    assert second["implementation"] == "textbook"
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows.csv"]


def test_a_plot_is_drawn_from_the_file(rows, tmp_path):
    pytest.importorskip("matplotlib")
    write_csv(as_dicts(rows, "cpu"), tmp_path / "rows.csv")
    again = read_rows(tmp_path / "rows.csv", Row)
    assert [row.step_ms for row in again] == [pytest.approx(row.step_ms, rel=1e-5) for row in rows]
    draw(again, tmp_path / "rows.png")
    assert (tmp_path / "rows.png").stat().st_size > 1000
