"""Measuring one case."""

import math

import torch

from capsroute.bench import measure
from capsroute.bench.cases import Case

CASE = Case("dynamic", "test", 1, 6, 3, k=4, o=4)


def test_errors_are_left_out_where_float64_does_not_fit(monkeypatch):
    def none_left(*_):
        raise torch.OutOfMemoryError

    routes = measure.implementations(CASE, compiled=False)
    monkeypatch.setattr(measure, "CPU_BUDGET", 0.0)
    made = measure.forward_backward
    monkeypatch.setattr(
        measure, "forward_backward", lambda f, t, g: (none_left if t[0].dtype == torch.float64 else made)(f, t, g)
    )
    for row in measure.measure_case(CASE, torch.float32, "cpu", routes):
        assert row.step_ms > 0
        assert math.isnan(row.error_poses)
        assert "float64 is out of memory" in row.note


def test_the_compiled_textbook_form_is_the_faster_of_its_ways():
    def made(name: str, ms: float) -> measure.Row:
        return measure.Row("case", "", "dynamic", 1, 1, 1, "", 3, "float32", name, graph_step_ms=ms)

    names = ("capsroute", "textbook", "textbook compiled: einsums", "textbook compiled: sums")
    rows = measure.best_ways(made(name, ms) for name, ms in zip(names, (1.0, 9.0, 12.4, 3.9)))
    assert [row.implementation for row in rows] == ["capsroute", "textbook", "textbook compiled"]
    assert (rows[-1].graph_step_ms, rows[-1].note) == (3.9, "written as sums")
    assert set(measure.implementations(CASE, compiled=True)) == set(names)
