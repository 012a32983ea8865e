"""A loss that is no number, and memory that ran out, end a run with a message that helps."""

import pytest
import torch
from safetensors.torch import load_file

from capsroute.training import NonFiniteLoss, OutOfMemory, RunFolder
from tests.training.tiny import spoilt_model, train


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_step_and_first_module_are_named(tmp_path, value):
    model = spoilt_model(4, lambda values: values * value)
    with pytest.raises(NonFiniteLoss) as caught:
        train(tmp_path, model, **{"checkpoint.every_steps": 2})
    assert str(caught.value).startswith("step 4: the loss ")
    assert "; the first module to produce one is 'convolution.1' (Spoiler)." in str(caught.value)


def test_loss_itself_can_be_the_culprit(tmp_path, monkeypatch):
    from capsroute.training import objective

    monkeypatch.setattr(objective.losses, "margin", lambda scores, targets: scores.sum() * float("inf"))
    with pytest.raises(
        NonFiniteLoss, match="step 0: the loss is inf; every module's output is finite: the loss itself"
    ):
        train(tmp_path, spoilt_model(9, None))


def test_last_good_checkpoint_is_left(tmp_path):
    model = spoilt_model(5, lambda values: values * float("nan"))
    with pytest.raises(NonFiniteLoss):
        train(tmp_path, model, **{"checkpoint.every_steps": 2})
    state = RunFolder(tmp_path).checkpoints.load()
    assert state["step"] == 4
    assert all(values.isfinite().all() for values in state["model"].values())


class BadGradient(torch.autograd.Function):
    """Passes values on, and a gradient that is no number."""

    @staticmethod
    def forward(ctx, values):
        return values.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad * float("nan")


def test_gradient_that_spoils_the_weights_is_told_apart(tmp_path):
    model = spoilt_model(4, BadGradient.apply)
    with pytest.raises(NonFiniteLoss) as caught:
        train(tmp_path, model)
    text = str(caught.value)
    assert text.startswith("step 5: the loss ")
    assert "; its update in the step before spoilt the weights" in text
    assert "down from 'convolution.0.bias'" in text


def raise_out_of_memory(values):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def test_out_of_memory_says_batch_peak_and_remedy(tmp_path):
    model = spoilt_model(1, raise_out_of_memory)
    with pytest.raises(OutOfMemory) as caught:
        train(tmp_path, model)
    text = str(caught.value)
    assert "batches of 200 in 1 part(s)" in text
    assert "the peak was" in text
    assert "training.accumulate=2 gives the same result in less memory" in text


def test_memory_of_a_real_allocation_is_explained(tmp_path):
    model = spoilt_model(1, lambda values: torch.empty(2**60))
    with pytest.raises(OutOfMemory, match="GiB"):
        train(tmp_path, model)


def raise_something_else(values):
    raise RuntimeError("shapes do not fit")


def test_other_errors_pass(tmp_path):
    with pytest.raises(RuntimeError, match="shapes do not fit"):
        train(tmp_path, spoilt_model(1, raise_something_else))


@pytest.mark.parametrize("step", [4, 11])
@pytest.mark.parametrize("validation", [True, False])
def test_finite_loss_with_a_gradient_that_is_not_spoils_nothing_that_is_kept(tmp_path, step, validation):
    """At the last step nothing comes after it that would notice."""
    changes = {"checkpoint.every_steps": 1, "data.validation": validation, "training.max_steps": 12}
    with pytest.raises(NonFiniteLoss, match=rf"step {step}: the loss was finite and its gradient was not"):
        train(tmp_path, spoilt_model(step, BadGradient.apply), **changes)
    state = RunFolder(tmp_path).checkpoints.load()
    assert state["step"] == step
    assert all(values.isfinite().all() for values in state["model"].values())
    assert not (tmp_path / "last").exists()
    if (tmp_path / "best").exists():
        best = load_file(tmp_path / "best" / "model.safetensors")
        assert all(values.isfinite().all() for values in best.values())
