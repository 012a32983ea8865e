"""Suites: what they write, when they stop, and what is compiled before them."""

import csv

import pytest
import torch

from capsroute.bench import suites
from capsroute.bench.cases import Case
from capsroute.bench.models import END_TO_END, ways
from capsroute.bench.run import Row
from capsroute.bench.suites import Options, SweepRow, run_suite, warm_suites
from capsroute.bench.warming import CaseTask, ModelTask

TINY = tuple(Case("dynamic", "test", batch, 6, 3, k=4, o=4) for batch in (1, 2))


@pytest.fixture
def said(monkeypatch) -> list[str]:
    monkeypatch.setitem(suites.CASES, "small", TINY)
    monkeypatch.setattr("capsroute.bench.run.CPU_BUDGET", 0.0)
    return []


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_was_measured_is_kept_when_a_later_row_fails(said, tmp_path, monkeypatch):
    def measured(case, *_):
        if case.batch == 2:
            raise RuntimeError("killed")
        yield Row(case.name, "", "dynamic", 1, 6, 3, "", 3, "float32", "capsroute", 1.0, 2.0)

    monkeypatch.setattr(suites, "measure_case", measured)
    with pytest.raises(RuntimeError, match="killed"):
        run_suite("small", Options("cpu", ["float32"], tmp_path, say=said.append))
    assert [row["batch"] for row in rows(tmp_path / "small-cpu.csv")] == ["1"]


def test_a_suite_stops_after_its_time(said, tmp_path):
    run_suite("small", Options("cpu", ["float32"], tmp_path, compiled=False, limit=0, say=said.append))
    assert len(rows(tmp_path / "small-cpu.csv")) == 1
    assert any("stopped after 0 s" in line for line in said)


def test_only_dtypes_that_a_case_has_are_measured(said):
    both = Case("dynamic", "test", 1, 6, 3, dtypes=("float32", "bfloat16"))
    options = Options("cpu", ["float32", "bfloat16"], None)
    suites.CASES["small"] = (TINY[0], both)
    assert [dtype for _, dtype in suites._cases("small", options)] == ["float32", "float32", "bfloat16"]


def test_exponents_are_fitted_a_sweep(said):
    def row(place: int, axis: str, time: float) -> SweepRow:
        case = ("case", "", "dynamic", 1, 6, 3, "", 3, "float32", "capsroute")
        return SweepRow(*case, step_ms=time, peak_mib=2.0**place, axis=axis, doublings=place)

    found = suites._fitted([row(p, "batch", 4.0**p) for p in range(4)] + [row(p, "pose", 7.0) for p in range(4)], print)
    assert [round(each.time_exponent, 6) for each in found] == [2.0] * 4 + [0.0] * 4
    assert [round(each.memory_exponent, 6) for each in found] == [1.0] * 8


def test_compiled_models_are_warmed_first_and_large_cases_without_the_textbook(monkeypatch):
    given = []
    monkeypatch.setattr(suites, "warm", lambda tasks, jobs, limit: given.extend(tasks) or [])
    warm_suites(["large", "models"], Options("cuda", ["float32"], None), 4, 1.0)
    models = [task for task in given if isinstance(task, ModelTask)]
    assert [task.compiled for task in models] == sorted((task.compiled for task in models), reverse=True)
    assert {task.implementation for task in given if isinstance(task, CaseTask)} == {"capsroute"}


def test_every_model_is_run_in_every_way_that_a_device_has():
    assert len(list(ways("cuda", compiled=True))) == sum(4 if subject.compiled else 2 for subject in END_TO_END)
    assert [way[1:] for way in ways("cpu", compiled=False, only="capsnet")] == [(False, False)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="without a GPU")
def test_a_task_that_fails_says_why():
    from capsroute.bench.warming import _run

    assert "Error" in _run(CaseTask(TINY[0], "float32", "capsroute"))
