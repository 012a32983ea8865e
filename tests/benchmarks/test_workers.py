"""Tasks are prepared by many processes and measured by the one that prepared them."""

import os
from dataclasses import dataclass

import pytest
import torch

from benchmarks.workers import Workers


@dataclass
class Pretend:
    """A task that says which process did what."""

    name: str
    cost: int = 0
    broken: str = ""
    prepared_by: int = 0

    def prepare(self) -> None:
        if self.broken == "ends":
            os._exit(1)
        self.prepared_by = os.getpid()

    def measure(self):
        yield self.name, self.prepared_by, os.getpid()
        if self.broken == "raises":
            raise RuntimeError("no such kernel")


@pytest.fixture
def said(monkeypatch) -> list[str]:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return []


def test_without_processes_a_task_is_measured_here(said):
    task = Pretend("one")
    with Workers([task], 0, 1.0, said.append) as workers:
        assert list(workers.measure(task)) == [("one", 0, os.getpid())]


def test_what_is_not_prepared_in_time_is_said(said):
    task = Pretend("slow")
    with Workers([task], 1, 0.0, said.append) as workers:
        assert not list(workers.measure(task))
    assert said == ["slow: not prepared in time"]


def test_preparing_ends_when_it_is_enough(said):
    tasks = [Pretend("one"), Pretend("two")]
    with Workers(tasks, 1, 300.0, said.append, lambda: any("prepared" in line for line in said)) as workers:
        rows = [len(list(workers.measure(task))) for task in tasks]
    assert rows == [1, 0]
    assert said[-1] == "two: not prepared in time"


def test_processes_measure_what_they_prepared_and_failures_are_said(said):
    tasks = [Pretend("good"), Pretend("raises", broken="raises"), Pretend("ends", broken="ends")]
    with Workers(tasks, 2, 300.0, said.append) as workers:  # one process has to do the work of both
        rows = {task.name: list(workers.measure(task)) for task in tasks}
    assert len(rows["good"]) == len(rows["raises"]) == 1
    for name in ("good", "raises"):
        prepared, measured = rows[name][0][1:]
        assert prepared == measured != os.getpid()
    assert rows["ends"] == []
    assert "raises: RuntimeError: no such kernel" in said
    assert "prepared ends: its process ended" in said
