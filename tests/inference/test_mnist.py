"""The claim of 000, table 1, on real MNIST: fast max-min inference loses little."""

import pytest
import torch

import capsroute as cr
from capsroute.inference.learning import optimise

HERE = cr.data.dataset_info("mnist").is_here()


@pytest.mark.slow
@pytest.mark.skipif(not HERE, reason="MNIST is not here: capsroute data fetch mnist")
def test_fast_max_min_inference_loses_less_than_half_a_point():
    torch.manual_seed(0)
    train, test = cr.data.load("mnist").subset(torch.arange(10_000)), cr.data.load("mnist", "test")
    model = cr.create_model("capsnet_small", image_size=28, routing="max_min", decoder=None)
    optimise(model.train(), list(model.parameters()), cr.data.Batches(train, 64), epochs=3, learning_rate=2e-3)
    folded = cr.inference.fold(model, cr.inference.accumulate(model, train))
    batches = cr.data.Batches(test, 250, shuffle=False)
    dynamic, fast = (100 * cr.training.evaluate(variant, batches)["accuracy"] for variant in (model, folded))
    assert dynamic > 95
    assert fast > dynamic - 0.5
