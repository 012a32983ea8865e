"""Suites: what they write, when they stop, and what they are made of."""

import csv

import pytest

from benchmarks import suites
from benchmarks.suites import Options, run_suites, tasks_of
from benchmarks.whole_models import END_TO_END, ways
from capsroute.bench.cases import Case
from capsroute.bench.measure import Row

TINY = tuple(Case("dynamic", "test", batch, 6, 3, k=4, o=4) for batch in (1, 2))


@pytest.fixture
def said(monkeypatch) -> list[str]:
    monkeypatch.setitem(suites.CASES, "small", TINY)
    monkeypatch.setattr("capsroute.bench.measure.CPU_BUDGET", 0.0)
    return []


def rows(path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_what_was_measured_is_kept_when_a_later_row_fails(said, tmp_path, monkeypatch):
    def measured(case, *_):
        if case.batch == 2:
            raise RuntimeError("killed")
        yield Row(case.name, "", "dynamic", 1, 6, 3, "", 3, "float32", "capsroute", 1.0, 2.0)

    monkeypatch.setattr("benchmarks.layers.measure_case", measured)
    with pytest.raises(RuntimeError, match="killed"):
        run_suites({"small": 60.0}, Options("cpu", ["float32"], tmp_path, say=said.append))
    assert [row["batch"] for row in rows(tmp_path / "small-cpu.csv")] == ["1"]


def test_a_suite_stops_after_its_time(said, tmp_path, monkeypatch):
    clock = iter([0.0, 0.5, 1.5])  # the second case would begin too late
    monkeypatch.setattr(suites.time, "monotonic", lambda: next(clock))
    run_suites({"small": 1.0}, Options("cpu", ["float32"], tmp_path, compiled=False, say=said.append))
    assert {row["batch"] for row in rows(tmp_path / "small-cpu.csv")} == {"1"}
    assert any("stopped after 1 s" in line for line in said)


def test_only_dtypes_that_a_case_has_are_measured(said):
    both = Case("dynamic", "test", 1, 6, 3, dtypes=("float32", "bfloat16"))
    suites.CASES["small"] = (TINY[0], both)
    tasks = tasks_of("small", Options("cpu", ["float32", "bfloat16"], None))
    assert [task.dtype for task in tasks] == ["float32", "float32", "bfloat16"]


def test_large_cases_are_measured_without_the_compiled_textbook_form():
    options = Options("cuda", ["float32"], None)
    assert all(not task.compiled for task in tasks_of("large", options))
    assert all(task.compiled for task in tasks_of("paper", options))


def test_nothing_is_measured_before_the_file_exists(said, tmp_path, monkeypatch):
    free = tmp_path / "free"
    slept = []
    monkeypatch.setattr(suites.time, "sleep", lambda seconds: slept.append(seconds) or free.touch())
    run_suites({"small": 60.0}, Options("cpu", ["float32"], tmp_path, compiled=False, after=free, say=said.append))
    assert len(slept) == 1
    assert len(rows(tmp_path / "small-cpu.csv")) == 4


def test_a_compiled_model_is_prepared_before_a_layer():
    options = Options("cuda", ["float32"], None)
    costs = {task.compiled: task.cost for task in tasks_of("models", options)}
    assert costs[True] > tasks_of("paper", options)[0].cost > tasks_of("sweeps", options)[0].cost


def test_every_model_is_run_in_every_way_that_a_device_has():
    assert len(list(ways("cuda", compiled=True))) == sum(4 if whole.compiled else 2 for whole in END_TO_END)
    assert {way[1:] for way in ways("cpu", compiled=False)} == {(False, False)}


def test_only_tasks_with_one_of_the_texts_in_their_names():
    options = Options("cuda", ["float32", "bfloat16"], None, only="capsnet, bfloat16|batch 512")
    assert [task.name for task in tasks_of("models", options)] == ["capsnet, bfloat16", "capsnet, bfloat16, compiled"]
    assert {task.case.batch for task in tasks_of("paper", options)} == {512}
    assert not tasks_of("sweeps", options)
