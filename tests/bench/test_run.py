"""Measuring one case."""

import math

import torch

from capsroute.bench import run
from capsroute.bench.cases import Case

CASE = Case("dynamic", "test", 1, 6, 3, k=4, o=4)


def test_errors_are_left_out_where_float64_does_not_fit(monkeypatch):
    def none_left(*_):
        raise torch.OutOfMemoryError

    routes = run.implementations(CASE, compiled=False)
    monkeypatch.setattr(run, "CPU_BUDGET", 0.0)
    made = run.forward_backward
    monkeypatch.setattr(
        run, "forward_backward", lambda f, t, g: (none_left if t[0].dtype == torch.float64 else made)(f, t, g)
    )
    for row in run.measure_case(CASE, torch.float32, "cpu", routes):
        assert row.step_ms > 0
        assert math.isnan(row.error_poses)
        assert "float64 is out of memory" in row.note
