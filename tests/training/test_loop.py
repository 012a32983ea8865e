"""What the loop does at each step and each epoch, where a mistake would still train."""

import pytest
import torch

import capsroute as cr
from capsroute.models import load_model
from capsroute.training import RunFolder, loop, objective
from tests.training.tiny import tiny_model, train

ONE_STEP = {"optimiser": {"name": "sgd", "learning_rate": 1000.0, "momentum": 0.0}, "training.max_steps": 1}


def test_averaged_weights_are_the_ones_that_are_validated(tmp_path):
    run = train(tmp_path, **{"training.ema": 0.95, "training.epochs": 1, "loss.reconstruction": 0.0})
    found = run.history[-1]["validation_loss"]
    batches = cr.data.Batches(cr.data.load("digits", "validation"), 200, shuffle=False)

    def margin(output, images, labels):
        return cr.losses.margin(output.scores, labels)

    averaged = cr.training.evaluate(load_model(tmp_path / "last"), batches, loss=margin)["loss"]
    raw = load_model(tmp_path / "last")
    raw.load_state_dict(RunFolder(tmp_path).checkpoints.load()["model"])
    assert found == pytest.approx(averaged, rel=1e-5)
    assert abs(cr.training.evaluate(raw, batches, loss=margin)["loss"] - found) > 1e-3


def test_clipping_is_by_the_norm_of_the_whole_gradient(tmp_path):
    """It keeps the direction; clipping value by value would not."""
    before = tiny_model().state_dict()
    moves = []
    for clip in (None, 1e-4):
        after = train(tmp_path / str(clip), tiny_model(), **ONE_STEP, **{"training.clip": clip}).model.state_dict()
        moves.append(torch.cat([(after[name] - before[name]).flatten() for name in before]))
    free, clipped = moves
    assert free.norm() > 0.5
    torch.testing.assert_close(clipped, free * 0.1 / free.norm(), atol=1e-6, rtol=1e-3)


def test_accumulation_cuts_the_batch(tmp_path):
    """It is there to save memory, which a whole batch that is weighted rightly does not."""
    model = tiny_model()
    seen = []
    model.register_forward_hook(lambda module, inputs, output: seen.append(len(inputs[0])) if module.training else None)
    train(tmp_path, model, **ONE_STEP, **{"training.accumulate": 3})
    assert seen == [67, 67, 66]


def test_a_recipe_may_lay_convolutions_out_with_channels_last(tmp_path):
    model = train(tmp_path, **ONE_STEP, **{"training.channels_last": True}).model
    assert model.primary_capsules.poses.weight.is_contiguous(memory_format=torch.channels_last)


def test_kernels_are_compiled_before_the_first_step_on_a_batch_as_steps_have_it(tmp_path, monkeypatch):
    warmed = []
    monkeypatch.setattr(loop, "warm_up", lambda model, loss, batch: warmed.append((loss(model, *batch), len(batch[0]))))
    train(tmp_path, **ONE_STEP | {"training.max_steps": 2}, **{"training.accumulate": 3})
    [(value, images)] = warmed
    assert images == 67
    assert value.requires_grad
    assert value.shape == ()


def test_margin_of_the_spread_loss_grows_with_every_step(tmp_path, monkeypatch):
    margins, spread = [], objective.losses.spread

    def watched(scores, targets, margin):
        margins.append(round(float(margin), 5))
        return spread(scores, targets, margin)

    monkeypatch.setattr(objective.losses, "spread", watched)
    changes = {"loss": {"name": "spread"}, "data.validation": False, "training.max_steps": 7, "training.epochs": 1}
    run = train(tmp_path, **changes)
    assert run.result["steps"] == 7
    assert margins == [round(0.2 + 0.7 * min(1.0, 2 * step / 7), 5) for step in range(7)]


def test_ties_of_accuracy_are_broken_by_loss(tmp_path, monkeypatch):
    measured = iter([(0.5, 0.4), (0.7, 0.9), (0.7, 0.3), (0.7, 0.6), (0.6, 0.1)])

    def scripted(*arguments):
        accuracy, loss = next(measured)
        return {"accuracy": accuracy, "loss": loss}

    monkeypatch.setattr(loop, "evaluate", scripted)
    run = train(tmp_path, **{"training.epochs": 5})
    assert run.result["best_epoch"] == 3
    assert run.result["validation_accuracy"] == 0.7


def test_seconds_before_an_interruption_count(tmp_path):
    train(tmp_path, **{"training.max_steps": 7})
    checkpoints = RunFolder(tmp_path).checkpoints
    state = checkpoints.load()
    assert 0 < state["seconds"] < 1000
    checkpoints.save(7, {**state, "seconds": 1000.0})
    run = train(tmp_path, resume=True)
    assert 1000 < run.history[-1]["seconds"] < 2000
    assert run.result["train_seconds"] == run.history[-1]["seconds"]
