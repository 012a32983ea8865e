import copy

import pytest
import torch

import capsroute as cr
from capsroute.layers import FastRouter
from tests.inference.networks import OneLayer, TwoLayers, make_batches, quiet_accumulate


@pytest.mark.parametrize("routing", ["max_min", "dynamic"])
def test_uniform_is_one_iteration_of_the_routing(routing):
    torch.manual_seed(0)
    model = OneLayer(routing)
    uniform = cr.inference.with_coefficients(model, "uniform")
    model.capsules.routing.iterations = 1
    images = torch.rand(3, 1, 5, 5)
    torch.testing.assert_close(uniform(images).poses, model(images).poses, rtol=0, atol=1e-6)


@pytest.mark.parametrize("norm", [None, "affine", "none"])
def test_uniform_of_attention_is_its_first_step_with_its_norm(norm):
    torch.manual_seed(0)
    model = TwoLayers({"name": "inverted_attention", "norm": norm})
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:
            torch.nn.init.normal_(parameter)
    uniform = cr.inference.with_coefficients(model, "uniform")
    for layer in model.stack.layers:
        layer.routing.iterations = 1
    images = torch.rand(3, 1, 7, 7)
    torch.testing.assert_close(uniform(images).poses, model(images).poses, rtol=1e-4, atol=1e-5)


def test_uniform_of_pooling_is_the_mean_of_the_votes():
    torch.manual_seed(0)
    model = OneLayer({"name": "pooling", "sharpness": 0.0})
    uniform = cr.inference.with_coefficients(model, "uniform")
    images = torch.rand(3, 1, 5, 5)
    torch.testing.assert_close(uniform(images).poses, model(images).poses, rtol=0, atol=1e-6)


def test_uses_the_given_matrix_and_leaves_the_model_alone():
    torch.manual_seed(0)
    model = OneLayer("max_min")
    before = copy.deepcopy(model)
    C = torch.rand(18, 4)
    fast = cr.inference.with_coefficients(model, {"capsules": C})
    images = torch.rand(3, 1, 5, 5)
    capsules = cr.layers.flatten_positions(*model.primary(images))
    expected = cr.fast_routing(cr.LinearVotes(capsules.poses, model.capsules.W), C).poses
    torch.testing.assert_close(fast(images).poses, expected)
    assert torch.equal(model(images).poses, before(images).poses)
    assert fast.capsules.W is not model.capsules.W


def test_layers_without_given_coefficients_stay_dynamic():
    model, batches = TwoLayers("max_min"), make_batches(size=7)
    master = quiet_accumulate(model, batches, layers=["stack.layers.0"])
    fast = cr.inference.with_coefficients(model, master)
    assert [layer.routing.name for layer in fast.stack.layers] == ["fast", "max_min"]


def test_concurrent_schedule_with_given_coefficients_is_one_pass():
    torch.manual_seed(0)
    model = TwoLayers("inverted_attention", schedule="concurrent")
    fast = cr.inference.with_coefficients(model, quiet_accumulate(model, make_batches(size=7)))
    assert fast.stack.schedule == "concurrent"
    images = torch.rand(3, 1, 7, 7)
    concurrent = fast(images).poses
    fast.stack.schedule = "sequential"
    torch.testing.assert_close(concurrent, fast(images).poses)


@pytest.mark.parametrize("learned", [True, False])
def test_learned_coefficients_are_parameters(learned):
    fast = cr.inference.with_coefficients(OneLayer(), "uniform", learned=learned)
    assert isinstance(fast.capsules.routing, FastRouter)
    assert ("capsules.routing.coefficients" in dict(fast.named_parameters())) is learned
    assert "capsules.routing.coefficients" in fast.state_dict()


def test_a_fast_model_is_saved_and_loaded_like_any_other(tmp_path):
    torch.manual_seed(0)
    model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    fast = cr.inference.with_coefficients(model, {"class_capsules": torch.rand(32, 10)}).eval()
    cr.save_model(fast, tmp_path)
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(cr.load_model(tmp_path)(images).scores, fast(images).scores)


def test_dtype_and_device_are_the_layers():
    fast = cr.inference.with_coefficients(OneLayer().double(), "uniform")
    assert fast.capsules.routing.coefficients.dtype == torch.float64
    assert fast(torch.rand(2, 1, 5, 5, dtype=torch.float64)).scores.dtype == torch.float64


@pytest.mark.parametrize(
    ("coefficients", "says"),
    [
        ("random", "expected MasterCoefficients, a dict or 'uniform', got 'random'"),
        ({"capsules": torch.rand(18, 5)}, r"layer 'capsules' needs \(18, 4\) \[i,j\], got \(18, 5\)"),
        ({"capsules": torch.full((18, 4), torch.nan)}, "expected finite numbers for layer 'capsules'"),
        ({"top": torch.rand(18, 4)}, "layers: expected names among capsules, got 'top'"),
    ],
)
def test_refuses_other_coefficients(coefficients, says):
    with pytest.raises(ValueError, match=says):
        cr.inference.with_coefficients(OneLayer(), coefficients)
