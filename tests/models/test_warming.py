"""Warming a model up needs the chip its kernels run on."""

import pytest
import torch

from capsroute.models.warming import warm


@pytest.mark.skipif(torch.cuda.is_available(), reason="has one")
def test_without_a_gpu_it_says_so():
    with pytest.raises(ValueError, match="there is no CUDA device"):
        warm("capsnet")


@pytest.mark.gpu
def test_the_first_step_compiles_nothing_more():
    done = warm("capsnet", 32)
    assert done.kernels > 5
    assert done.first_step < 3
