"""Going on exactly: a run that was killed ends with the weights of one that was not, bit for bit."""

import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from capsroute.models import create_model
from capsroute.training import RunFolder, SilentReporter, fit
from capsroute.training.checkpoint import Checkpoints
from tests.training.processes import CONTEXT
from tests.training.tiny import tiny

CHANGES = {
    "training.epochs": 4,
    "training.ema": 0.9,
    "training.accumulate": 2,
    "schedule": {"name": "one_cycle"},
    "checkpoint.every_steps": 2,
}


class NoisyReporter(SilentReporter):
    """Says each step, and takes its time over it, so that a kill can be aimed at any moment of a run."""

    def __init__(self, pipe):
        self.pipe = pipe

    def due(self):
        return True

    def step(self, epoch, done, loss, accuracy, speed):
        self.pipe.send(done)
        time.sleep(0.004)


def train(folder, pipe):
    torch.set_num_threads(1)
    fit(noisy_model(), None, tiny(**CHANGES), folder, resume=True, reporter=NoisyReporter(pipe))


class Noise(torch.nn.Module):
    """Draws from torch's generator while training, so that a random state that is not restored shows."""

    def forward(self, images):
        return images + 0.1 * torch.randn_like(images) if self.training else images


def noisy_model():
    torch.manual_seed(0)
    settings = tiny().model
    model = create_model(settings.name, image_size=8, **settings.arguments)
    model.convolution = torch.nn.Sequential(Noise(), model.convolution)
    return model


def weights(folder):
    return {name: load_file(Path(folder) / name / "model.safetensors") for name in ("best", "last")}


def same(one, two):
    return all(torch.equal(one[place][key], two[place][key]) for place in one for key in one[place])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    torch.set_num_threads(1)
    fit(noisy_model(), None, tiny(**CHANGES), folder, reporter=SilentReporter())
    return folder


def kill_in_the_middle(folder, steps, extra=0.0):
    """Train in a process that is killed `extra` seconds after it has done `steps` steps; whether it lived that long."""
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=train, args=(folder, there))
    process.start()
    while here.recv() < steps:
        pass
    time.sleep(extra)
    alive = process.is_alive()
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    return alive


@pytest.mark.parametrize("seed", range(20))
def test_killed_run_ends_with_the_same_weights(undisturbed, tmp_path, seed):
    draw = random.Random(seed)
    assert kill_in_the_middle(tmp_path, draw.randrange(1, 24), draw.uniform(0, 0.02))
    run = fit(noisy_model(), None, tiny(**CHANGES), tmp_path, resume=True, reporter=SilentReporter())
    assert same(weights(tmp_path), weights(undisturbed))
    straight = RunFolder(undisturbed).read_metrics()
    for mine, theirs in zip(RunFolder(tmp_path).read_metrics(), straight, strict=True):
        timing = ("seconds", "images_per_second")
        assert {k: v for k, v in mine.items() if k not in timing} == {
            k: v for k, v in theirs.items() if k not in timing
        }
    assert run.accuracy == RunFolder(undisturbed).read("result.json")["test"]["as_trained"]["accuracy"]


def test_run_killed_twice_and_with_a_damaged_checkpoint_ends_the_same(undisturbed, tmp_path):
    assert kill_in_the_middle(tmp_path, 7)
    assert kill_in_the_middle(tmp_path, 15)
    newest = max((tmp_path / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    said = []
    reporter = SilentReporter()
    reporter.say = said.append
    fit(noisy_model(), None, tiny(**CHANGES), tmp_path, resume=True, reporter=reporter)
    assert any("damaged checkpoint" in text for text in said)
    assert same(weights(tmp_path), weights(undisturbed))


def test_run_that_ended_is_not_trained_further(undisturbed, tmp_path):
    fit(noisy_model(), None, tiny(**CHANGES), tmp_path, reporter=SilentReporter())
    before = weights(tmp_path)
    fit(noisy_model(), None, tiny(**CHANGES), tmp_path, resume=True, reporter=SilentReporter())
    assert same(weights(tmp_path), before)


@pytest.mark.parametrize("forgotten", ["random", "optimiser", "average", "batches"])
def test_nothing_in_a_checkpoint_is_superfluous(undisturbed, tmp_path, forgotten):
    """Without any one of them the weights come out different: the tests above would notice."""
    half = {**CHANGES, "training.max_steps": 9}
    fit(noisy_model(), None, tiny(**half), tmp_path, reporter=SilentReporter())
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    (checkpoints.folder / "step-000000009.sha256").unlink()
    state, fresh = checkpoints.load(lambda text: None), Checkpoints(undisturbed / "checkpoints").load()
    assert state["step"] == 8
    state[forgotten] = {**fresh[forgotten], "position": 0, "epoch": 1} if forgotten == "batches" else fresh[forgotten]
    checkpoints.save(10, state)
    fit(noisy_model(), None, tiny(**CHANGES), tmp_path, resume=True, reporter=SilentReporter())
    assert not same(weights(tmp_path), weights(undisturbed))


def test_resumed_run_remembers_where_it_began(tmp_path):
    for resume in (False, True):
        fit(None, None, tiny(**{"training.epochs": 1}), tmp_path, resume=resume, reporter=SilentReporter())
    environment = RunFolder(tmp_path).read("environment.json")
    assert len(environment["resumed"]) == 1
    assert environment["started"] <= environment["resumed"][0]["started"]


def test_result_is_written_once_finished(undisturbed):
    result = json.loads((undisturbed / "result.json").read_text())
    assert result["steps"] == 24
    assert set(result["test"]) == {"as_trained", "uniform"}
