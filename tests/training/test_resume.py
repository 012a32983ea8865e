"""Going on exactly: a run that was killed ends with the weights of one that was not, bit for bit."""

import random
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from capsroute.models import create_model
from capsroute.training import Interrupted, RunFolder, SilentReporter
from capsroute.training.checkpoint import Checkpoints
from tests.training.processes import CONTEXT, AtStep, signal_at
from tests.training.tiny import tiny_model, train

CHANGES = {
    "training.epochs": 4,
    "training.ema": 0.9,
    "training.accumulate": 2,
    "schedule": {"name": "one_cycle"},
    "checkpoint.every_steps": 2,
}


def train_and_die(folder, steps, extra):
    """Die without a word, as by kill -9, `extra` seconds of computing after so many steps."""
    torch.set_num_threads(1)
    die = AtStep(steps, lambda: signal.setitimer(signal.ITIMER_PROF, extra))
    train(folder, noisy_model(), resume=True, reporter=die, **CHANGES)


class Noise(torch.nn.Module):
    """Draws from torch's generator while training, so that a random state that is not restored shows."""

    def forward(self, images):
        return images + 0.1 * torch.randn_like(images) if self.training else images


def noisy_model():
    model = tiny_model()
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
    train(folder, noisy_model(), **CHANGES)
    return folder


def kill_in_the_middle(folder, steps, extra=1e-6):
    process = CONTEXT.Process(target=train_and_die, args=(folder, steps, extra))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGPROF


@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 20))])
def test_killed_run_ends_with_the_same_weights(undisturbed, tmp_path, seed):
    draw = random.Random(seed)
    kill_in_the_middle(tmp_path, draw.randrange(1, 24), draw.uniform(0, 0.02))
    run = train(tmp_path, noisy_model(), resume=True, **CHANGES)
    assert same(weights(tmp_path), weights(undisturbed))
    straight = RunFolder(undisturbed).read_metrics()
    for mine, theirs in zip(RunFolder(tmp_path).read_metrics(), straight, strict=True):
        timing = ("seconds", "images_per_second")
        assert {k: v for k, v in mine.items() if k not in timing} == {
            k: v for k, v in theirs.items() if k not in timing
        }
    assert run.accuracy == RunFolder(undisturbed).read("result.json")["test"]["as_trained"]["accuracy"]


def test_run_killed_twice_and_with_a_damaged_checkpoint_ends_the_same(undisturbed, tmp_path):
    kill_in_the_middle(tmp_path, 7)
    kill_in_the_middle(tmp_path, 15)
    newest = max((tmp_path / "checkpoints").glob("*.safetensors"))
    newest.write_bytes(newest.read_bytes()[:-100])
    assert any("damaged checkpoint" in text for text in said_by(tmp_path, noisy_model(), **CHANGES))
    assert same(weights(tmp_path), weights(undisturbed))


@pytest.mark.parametrize("forgotten", ["random", "optimiser", "average", "batches"])
def test_nothing_in_a_checkpoint_is_superfluous(undisturbed, tmp_path, forgotten):
    """Without any one of them the weights come out different: the tests above would notice."""
    half = {**CHANGES, "training.max_steps": 9}
    train(tmp_path, noisy_model(), **half)
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    state, fresh = checkpoints.load(), Checkpoints(undisturbed / "checkpoints").load()
    assert state["step"] == 9
    state[forgotten] = {**fresh[forgotten], "position": 0, "epoch": 1} if forgotten == "batches" else fresh[forgotten]
    checkpoints.save(10, state)
    train(tmp_path, noisy_model(), resume=True, **CHANGES)
    assert not same(weights(tmp_path), weights(undisturbed))


def test_run_that_was_stopped_in_the_middle_of_an_epoch_goes_on_there(undisturbed, tmp_path):
    for steps in (9, 20, None):
        run = train(tmp_path, noisy_model(), resume=True, **{**CHANGES, "training.max_steps": steps})
    assert (run.result["steps"], run.result["epochs"]) == (24, 4)
    assert [row["epoch"] for row in run.history] == [1, 2, 3, 4]
    assert same(weights(tmp_path), weights(undisturbed))


def test_resumed_run_remembers_where_it_began(tmp_path):
    for resume, steps in ((False, 3), (True, None)):
        train(tmp_path, resume=resume, **{"training.epochs": 1, "training.max_steps": steps})
    environment = RunFolder(tmp_path).read("environment.json")
    assert len(environment["resumed"]) == 1
    assert environment["started"] <= environment["resumed"][0]["started"]


def said_by(folder, model=None, **changes):
    """What is said while a run goes on."""
    said = []
    reporter = SilentReporter()
    reporter.say = said.append
    train(folder, model, resume=True, reporter=reporter, **changes)
    return said


def test_run_whose_checkpoints_are_gone_says_that_it_starts_anew(tmp_path):
    train(tmp_path, **{"training.max_steps": 7})
    for path in (tmp_path / "checkpoints").iterdir():
        path.unlink()
    assert any("no whole checkpoint" in text and "starting anew" in text for text in said_by(tmp_path))
    assert RunFolder(tmp_path).read("result.json")["steps"] == 12


def other_weights(state):
    state["model"]["class_capsules.W"] = state["model"]["class_capsules.W"][:1]


def no_weights(state):
    del state["model"]


def spoilt_weights(state):
    next(iter(state["model"].values())).fill_(torch.nan)


def other_optimiser(state):
    state["optimiser"]["state"][0]["exp_avg"] = torch.zeros(3)


def fewer_parameters(state):
    state["optimiser"]["param_groups"][0]["params"].pop()


def future(state):
    state["step"] = 1000


def no_random(state):
    state["random"] = [{}]


def other_batches(state):
    state["batches"]["seed"] = 99


WRONG = [other_weights, no_weights, spoilt_weights, other_optimiser, fewer_parameters, future, no_random, other_batches]


@pytest.mark.parametrize("change", WRONG)
def test_checkpoint_with_a_right_checksum_and_wrong_content_falls_back(tmp_path, change):
    recipe = {"checkpoint.every_steps": 5}
    whole = train(tmp_path / "whole", **recipe)
    train(tmp_path / "run", **recipe, **{"training.max_steps": 5})
    checkpoints = RunFolder(tmp_path / "run").checkpoints
    state = checkpoints.load()
    change(state)
    checkpoints.save(7, state)
    said = said_by(tmp_path / "run", **recipe)
    assert "step-000000007.safetensors: damaged checkpoint" in said[0]
    assert "going on from step 5" in said[1]
    assert same(weights(tmp_path / "run"), weights(whole.folder))


def test_run_of_another_model_is_refused_and_left_alone(tmp_path):
    train(tmp_path, **{"training.max_steps": 7})
    before = sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*"))
    wider = create_model("capsnet_small", image_size=8, channels=5)
    with pytest.raises(ValueError, match=r"no checkpoint in .* is of this model and these data: expected weights"):
        said_by(tmp_path, wider)
    assert sorted((path, path.stat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_checkpoints_that_were_passed_over_do_not_push_out_good_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for step in (3, 5):
        checkpoints.save(step, {"step": step})
    (tmp_path / "step-000000009.safetensors").write_bytes(b"damaged")
    checkpoints.save(6, {"step": 6})
    assert [path.stem for path in sorted(tmp_path.glob("*.safetensors"))] == ["step-000000005", "step-000000006"]


SELDOM = {**CHANGES, "checkpoint.every_steps": None}


def interrupted(folder, pipe, number):
    torch.set_num_threads(1)
    signal.signal(number, signal.SIG_DFL)  # ignored under nohup or in a shell's &
    reporter = signal_at(9, number)
    try:
        train(folder, noisy_model(), reporter=reporter, **SELDOM)
    except Interrupted as error:
        pipe.send((str(error), error.signal))


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_signal_leaves_a_checkpoint_of_its_step_and_says_how_to_go_on(undisturbed, tmp_path, name):
    here, there = CONTEXT.Pipe()
    process = CONTEXT.Process(target=interrupted, args=(tmp_path, there, getattr(signal, name)))
    process.start()
    there.close()
    message = here.recv()
    process.join()
    assert message == (
        f"stopped by {name}; `capsroute train {tmp_path} --resume` goes on from the last checkpoint",
        getattr(signal, name),
    )
    assert RunFolder(tmp_path).checkpoints.load()["step"] == 9
    train(tmp_path, noisy_model(), resume=True, **SELDOM)
    assert same(weights(tmp_path), weights(undisturbed))
