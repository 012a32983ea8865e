"""Devices and precisions."""

import pytest
import torch

from capsroute.models import create_model
from capsroute.training import SilentReporter, fit
from capsroute.training.precision import Precision, choose_device, cpu_threads, float32_products, place
from capsroute.training.sections import TrainingSection
from tests.training.tiny import tiny


def test_device_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"training\.device: 'quantum' cannot be used here"):
        choose_device("quantum")


@pytest.mark.parametrize("name", ["fp16", "tf32"])
def test_precision_that_the_cpu_lacks_is_refused(name):
    with pytest.raises(ValueError, match=rf"training\.precision: '{name}' needs a CUDA device"):
        Precision(name, torch.device("cpu"))


@pytest.mark.parametrize(("name", "allowed"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_global_settings_are_put_back(name, allowed):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with float32_products(name):
        assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == (allowed, allowed)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_channels_last_is_for_convolutions_only():
    model = place(create_model("capsnet_small"), torch.device("cpu"), TrainingSection(channels_last=True))
    assert model.primary_capsules.poses.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.class_capsules.W.is_contiguous()


@pytest.mark.parametrize("tuned", [False, True])
def test_convolutions_are_tuned_while_training_where_the_recipe_says_so(tmp_path, tuned):
    model = create_model("capsnet_small", image_size=8, decoder=None)
    seen = []
    model.register_forward_hook(lambda *_: seen.append((torch.is_grad_enabled(), torch.backends.cudnn.benchmark)))
    changes = {"training.tune_convolutions": tuned, "training.max_steps": 1, "loss.reconstruction": 0.0}
    fit(model, None, tiny(**changes), tmp_path, reporter=SilentReporter())
    assert {benchmark for training, benchmark in seen if training} == {tuned}
    assert not torch.backends.cudnn.benchmark


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with cpu_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    with cpu_threads(None):
        assert torch.get_num_threads() == before
