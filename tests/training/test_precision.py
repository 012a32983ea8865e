"""Devices and precisions."""

import pytest
import torch

from capsroute.models import create_model
from capsroute.training.precision import Precision, channels_last, choose_device, cpu_threads, float32_products


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
    model = channels_last(create_model("capsnet_small"))
    assert model.primary_capsules.poses.weight.is_contiguous(memory_format=torch.channels_last)
    # Of one channel, which is contiguous both ways: strides decide.
    first = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    assert first.weight.shape[1] == 1
    assert first(torch.rand(2, 1, 28, 28)).is_contiguous(memory_format=torch.channels_last)
    assert model.class_capsules.W.is_contiguous()


def test_threads_are_put_back():
    before = torch.get_num_threads()
    with cpu_threads(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before
    with cpu_threads(None):
        assert torch.get_num_threads() == before
