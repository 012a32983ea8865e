"""Where runs go, and who may write there."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from capsroute.training import RunFolder, SilentReporter
from capsroute.training.run_folder import choose_folder
from tests.training.processes import CONTEXT
from tests.training.tiny import train


def test_taken_names_are_numbered_and_made_at_once(tmp_path):
    first = choose_folder("digits", tmp_path)
    assert first == tmp_path / "digits"
    assert first.is_dir()
    second = choose_folder("digits", tmp_path)
    assert second == tmp_path / "digits-2"
    assert choose_folder("digits", tmp_path, resume=True) == second
    assert choose_folder("other", tmp_path, resume=True) == tmp_path / "other"


def test_many_that_choose_at_once_never_get_the_same(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        chosen = list(pool.map(lambda _: choose_folder("digits", tmp_path), range(64)))
    assert len(set(chosen)) == 64


def test_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"run: expected a run folder with a recipe\.toml"):
        RunFolder(tmp_path).recipe()
    with pytest.raises(ValueError, match=r"expected result\.json"):
        RunFolder(tmp_path).read("result.json")
    (tmp_path / "result.json").write_text("{")
    with pytest.raises(ValueError, match=r"result\.json: expected whole JSON, found something else"):
        RunFolder(tmp_path).read("result.json")
    assert RunFolder(tmp_path).read_metrics() == []


def test_the_nearest_run_beside_is_named(tmp_path):
    (tmp_path / "images-photos").mkdir()
    (tmp_path / "images-photos" / "recipe.toml").touch()
    with pytest.raises(ValueError, match=rf"got '{tmp_path}/photos'; did you mean '{tmp_path}/images-photos'\?"):
        RunFolder(tmp_path / "photos").recipe()


class Patient(SilentReporter):
    """Tells the test of each step and waits for its answer."""

    def __init__(self, pipe):
        self.pipe = pipe

    def due(self):
        return True

    def step(self, epoch, done, loss, accuracy, speed):
        self.pipe.send(done)
        self.pipe.recv()


def train_patiently(place, folder, seed, pipe):
    os.chdir(place)
    torch.set_num_threads(1)
    train(folder, resume=folder is not None, reporter=Patient(pipe), **{"training.seed": seed})


@pytest.fixture
def begin():
    """Starts processes that train and stand still after their first step; none outlives the test."""
    started = []

    def start(place, folder=None, seed=0):
        here, there = CONTEXT.Pipe()
        started.append(CONTEXT.Process(target=train_patiently, args=(place, folder, seed, there)))
        started[-1].start()
        there.close()
        here.recv()
        return started[-1], here

    yield start
    for process in started:
        process.kill()
        process.join()


def let_run(process, pipe):
    try:
        while True:
            pipe.send("go on")
            pipe.recv()
    except (EOFError, ConnectionError):
        process.join()
    assert process.exitcode == 0


def test_two_runs_started_together_have_a_folder_each(tmp_path, begin):
    started = [begin(tmp_path, seed=seed) for seed in (1, 2)]
    for process, pipe in started:
        let_run(process, pipe)
    folders = [RunFolder(tmp_path / "runs" / name) for name in ("tiny", "tiny-2")]
    assert sorted(folder.recipe().training.seed for folder in folders) == [1, 2]
    for folder in folders:
        assert folder.read("result.json")["seed"] == folder.recipe().training.seed


def test_second_process_is_refused_with_the_first_ones_host_and_pid(tmp_path, begin):
    process, pipe = begin(tmp_path, "run")
    before = content(tmp_path / "run")
    with pytest.raises(ValueError, match=rf"is in use: process {process.pid} on {socket.gethostname()} has been"):
        train(tmp_path / "run", resume=True)
    assert content(tmp_path / "run") == before
    let_run(process, pipe)
    assert RunFolder(tmp_path / "run").complete
    assert not (tmp_path / "run" / ".lock").exists()


def test_lock_of_a_killed_process_is_stale(tmp_path, begin):
    process, _ = begin(tmp_path, "run")
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert json.loads((tmp_path / "run" / ".lock").read_text())["pid"] == process.pid
    run = train(tmp_path / "run", resume=True)
    assert run.result["steps"] == 12


def test_run_that_could_not_begin_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="no data set"):
        train(None, **{"data": {}})
    assert list((tmp_path / "runs").iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match="no data set"):
        train(tmp_path / "mine", **{"data": {}})
    assert list((tmp_path / "mine").iterdir()) == []


def test_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    train(tmp_path, **{"training.max_steps": 1})
    with pytest.raises(ValueError, match=r"run_folder: .* holds a run already"):
        train(tmp_path)


def content(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("optimiser.learning_rate", 9.0),
        ("model.arguments.routing", "max_min"),
        ("training.epochs", 3),
        ("data.augment", []),
        ("loss.reconstruction", 0.1),
    ],
)
@pytest.mark.parametrize("steps", [None, 7])
def test_what_would_change_the_meaning_of_a_run_is_refused_before_anything_is_written(tmp_path, setting, value, steps):
    train(tmp_path, **{"training.max_steps": steps})
    before = content(tmp_path)
    with pytest.raises(ValueError, match=rf"was begun with {setting} = .* start a new run"):
        train(tmp_path, resume=True, **{setting: value})
    assert content(tmp_path) == before


def test_where_and_how_long_a_run_is_computed_may_change(tmp_path):
    train(tmp_path, **{"training.max_steps": 7})
    changes = {"training.accumulate": 2, "training.threads": 2, "evaluation.batch_size": 100}
    assert train(tmp_path, resume=True, **changes).result["steps"] == 12
    assert RunFolder(tmp_path).recipe().training.accumulate == 2


@pytest.mark.parametrize("steps", [None, 7])
def test_finished_run_is_not_touched(tmp_path, steps):
    first = train(tmp_path, **{"training.max_steps": steps})
    before, moment = content(tmp_path), time.time_ns()
    again = train(tmp_path, resume=True, **{"training.max_steps": steps})
    assert content(tmp_path) == before
    assert max(path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()) < moment
    assert again.result == json.loads(json.dumps(first.result))
    assert [row["epoch"] for row in again.history] == [row["epoch"] for row in first.history]
    for one, two in zip(first.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


def test_setting_of_a_finished_run_cannot_be_changed_at_all(tmp_path):
    train(tmp_path)
    before = content(tmp_path)
    with pytest.raises(ValueError, match=r"is finished and stays as it is; evaluation\.fast = True needs a new run"):
        train(tmp_path, resume=True, **{"evaluation.fast": True})
    assert content(tmp_path) == before
