"""The queue of runs: in order, some at once, chosen settings, going on after it was stopped."""

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUEUE = """
[[run]]
recipe = "quickstart"
name = "try-two"
set = ["training.max_steps=1", "evaluation.on='validation'", "model.arguments.routing={name='max_min',iterations=2}"]
[[run]]
recipe = "quickstart"
name = "try-none"
set = ["training.max_steps=1", "evaluation.on='validation'", "model.arguments.routing={name='dynamic',iterations=1}"]
[[run]]
recipe = "quickstart"
name = "chosen"
best_of = "try-"
set = ["training.max_steps=1"]
"""


def start(folder: Path, *options: str) -> subprocess.CompletedProcess:
    (folder / "queue.toml").write_text(QUEUE)
    command = [sys.executable, str(ROOT / "tools/train_queue.py"), "queue.toml", "runs", "evidence", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_queue_runs_chooses_and_goes_on(tmp_path):
    stopped = start(tmp_path, "--seconds", "0")
    assert stopped.returncode == 1
    assert "left: try-two-seed-0, try-none-seed-0, chosen-seed-0" in stopped.stdout
    done = start(tmp_path, "--at-once", "2")
    assert done.returncode == 0, done.stdout
    tried = {
        name: json.loads((tmp_path / f"runs/{name}-seed-0/result.json").read_text()) for name in ("try-two", "try-none")
    }
    reached = {
        name: result["test"].get("as_trained", result["test"].get("dynamic"))["accuracy"]
        for name, result in tried.items()
    }
    best = max(reached, key=reached.__getitem__)
    assert f"chosen-seed-0: settings of {best}-seed-0" in done.stdout
    with tarfile.open(tmp_path / "evidence/evidence.tar.gz") as archive:
        assert "chosen-seed-0/looks.csv" in archive.getnames()
        assert "try-two-seed-0/looks.csv" not in archive.getnames()
    again = start(tmp_path)
    assert "started" not in again.stdout


@pytest.mark.slow
def test_a_run_that_fails_twice_is_left_and_not_done(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "QUEUE", '[[run]]\nrecipe = "no-such-recipe"\n')
    done = start(tmp_path)
    assert done.returncode == 1
    assert "left: no-such-recipe-seed-0" in done.stdout
