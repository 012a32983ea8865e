"""The grid of sizes: the same points every time, rows kept as they come, goals told from the file."""

import os
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from capsroute.bench import grid
from capsroute.bench.cases import Case
from capsroute.bench.grid import LARGEST, GridRow, Point, _quiet, draw_grid, measure_point, points, summary
from capsroute.bench.measure import append_row, read_rows
from capsroute.bench.textbook import WAYS


def test_the_points_are_many_distinct_always_the_same_and_fit():
    found = points()
    assert len(found) >= 150
    assert len({point.name for point in found}) == len(found)
    assert found == points()
    kept = set((Path(__file__).parents[2] / "results/bench/grid-cuda.csv").read_text().split('"')[1::2])
    assert {point.name for point in found} <= kept
    assert {point.case.algorithm for point in found} == set(grid.COUNTS)
    for field, sizes in (("parents", grid.PARENTS), ("children", grid.CHILDREN), ("batch", grid.BATCHES)):
        assert {getattr(point.case, field) for point in found if point.case.algorithm == "dynamic"} == set(sizes)
    assert all(p.case.batch * p.case.children * p.case.parents * p.case.rows * p.case.o <= LARGEST for p in found)


@pytest.mark.parametrize("algorithm", ["dynamic", *grid.NEWER])
def test_a_point_is_measured_against_the_textbook(monkeypatch, algorithm):
    monkeypatch.setattr(torch, "compile", lambda route, **_: route)
    said = []
    row = measure_point(Point(Case(algorithm, "test", 2, 6, 3), "float32"), "cpu", lambda: said.append("ready"))
    assert said == ["ready"]
    assert row.note == ""
    assert row.speedup == row.textbook_ms / row.ours_ms > 0
    assert row.way in WAYS


def test_what_fails_is_a_note(monkeypatch):
    def broken(route, **_):
        def fail(*_):
            raise RuntimeError("no such kernel")

        return fail

    monkeypatch.setattr(torch, "compile", broken)
    row = measure_point(Point(Case("em", "test", 2, 6, 3, shared=True), "float32"), "cpu")
    assert row.note == " ".join(f"textbook {way}: RuntimeError: no such kernel" for way in WAYS)
    assert row.ours_ms > 0


def test_ways_that_never_won_are_not_compiled():
    few, many = Case("dynamic", "test", 2, 6, 3), Case("dynamic", "test", 256, 8192, 10)
    assert grid.worthwhile_ways(few) == ("sums",)
    assert grid.worthwhile_ways(many) == grid.worthwhile_ways(Case("em", "test", 2, 6, 3, shared=True)) == WAYS
    assert grid.worthwhile_ways(Case("vb", "test", 2, 6, 3)) == WAYS
    assert grid.worthwhile_ways(Case("pooling", "test", 2, 6, 1)) == ("einsums",)


def made(point: str, speedup: float, memory: float = 2.0) -> GridRow:
    return GridRow(
        point, "dynamic", 1, 32, 2, "1x8 -> 1x16", "shared", "float32", 1.0, speedup, speedup, 10.0, 10 * memory, memory
    )


def test_rows_are_appended_and_read_again(tmp_path):
    path = tmp_path / "grid-cpu.csv"
    for row in (made("first", 2.0), made("second", 8.0)):
        append_row(asdict(row), path, "cpu")
    assert read_rows(path, GridRow) == [made("first", 2.0), made("second", 8.0)]


def test_points_in_the_file_are_not_measured_again(tmp_path, monkeypatch):
    drawn = [Point(Case("dynamic", "test", 2, 6, parents), "float32") for parents in (3, 4)]
    monkeypatch.setattr(grid, "points", lambda: drawn)
    path, said = tmp_path / "grid-cpu.csv", []
    append_row(asdict(made(drawn[0].name, 3.0)), path, "cpu")
    grid.run_grid(path, "cpu", 1, 0.0, said.append, only=drawn[0].name)
    assert said[0].startswith("grid: 0 points to measure, 1 in")
    assert said[1].startswith("grid: 1 of 2 points; ")


def test_the_summary_names_every_point_that_misses_a_goal(tmp_path):
    rows = [made("fast", 8.0), made("slow", 0.5), made("fat", 2.0, 0.5), GridRow("lost", *[""] * 7, note="too long")]
    said = summary(rows, 5)
    assert "3 of 5 points; geometric mean 2.00x, worst 0.50x (slow); 1 use more memory" in said
    assert "  0.50x slow" in said
    assert "  2.00x fat" in said
    assert "not measured: lost: too long" in said
    draw_grid(rows, tmp_path / "grid.png")
    assert (tmp_path / "grid.png").stat().st_size > 1000


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="asks the system what a process does")
def test_other_processes_are_stopped_while_one_measures():
    def state(process: int) -> str:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]

    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as other:
        ended = 2**22 + 1  # no process has such a number
        with _quiet(threading.Lock(), [other.pid, 0, os.getpid(), ended]):
            assert state(other.pid) == "T"
        assert state(other.pid) != "T"
        other.kill()
