"""First steps: a process a model with a cache of its own, and what a file has is not measured again."""

import subprocess
import sys
import time

from benchmarks import first_steps
from capsroute.models import warming


def test_a_row_is_of_its_model_and_way_and_counts_from_the_start_of_the_process(tmp_path, monkeypatch):
    path = tmp_path / "first.csv"
    monkeypatch.setattr("capsroute.bench.measure.hardware", lambda device: "a chip")
    monkeypatch.setattr(warming, "warm_up", lambda *args, **options: 7)
    monkeypatch.setattr(warming, "warm", lambda name, batch: warming.Warmed(warming.warm_up(), 0.5, 0.25))
    for way in first_steps.WAYS:
        first_steps.measure("capsnet", way, 128, time.time() - 100, path)
    assert first_steps.measured(path) == {("capsnet", "warm_up"), ("capsnet", "as it comes")}
    header, *rows = [line.split(",") for line in path.read_text().splitlines()]
    kernels, totals = ([row[header.index(field)] for row in rows] for field in ("kernels", "total_s"))
    assert kernels == ["7", "0"]  # as it comes, nothing is warmed up
    assert all(float(total) >= 100 for total in totals)


def test_each_process_has_an_empty_cache_and_rows_of_the_file_are_left_out(tmp_path, monkeypatch):
    path, started = tmp_path / "first.csv", []
    path.write_text("model,way\ncapsnet,warm_up\n")

    def run(command, env, check):
        started.append((command[4], env["TRITON_CACHE_DIR"]))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["first_steps.py", str(path), "--models", "capsnet", "hvc", "tsai_cnn"])
    first_steps.main()
    assert [name for name, _ in started] == ["hvc", "tsai_cnn"]
    assert len({cache for _, cache in started}) == 2
