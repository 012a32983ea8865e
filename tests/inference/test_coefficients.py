import copy
import os

import pytest
import torch
from safetensors.torch import save_file

import capsroute as cr
from capsroute.inference import MasterCoefficients
from capsroute.inference.coefficients import class_layer, layers_for_coefficients, refusal
from capsroute.layers import CapsuleConv2d, CapsuleGlobal2d, CapsuleLinear, FastRouter, HeinsenRouting
from tests.inference.networks import CLASSES, OneLayer, TwoLayers, make_batches, quiet_accumulate


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (CapsuleLinear(6, 3, 4, 4, "max_min"), None),
        (CapsuleLinear(6, 3, 4, 4, "inverted_attention"), None),
        (CapsuleConv2d(2, 3, 4, 4, routing="dynamic"), None),
        (CapsuleConv2d(2, 3, 4, 4, routing={"name": "inverted_attention", "norm": "affine"}), None),
        (CapsuleLinear(None, 3, 4, 4, "dynamic"), "CapsuleLinear takes any number of children"),
        (CapsuleGlobal2d(2, 3, 4, 4, routing="dynamic"), "CapsuleGlobal2d takes any number of children"),
        (HeinsenRouting(None, 3, 4, 4), "HeinsenRouting takes any number of children"),
        (HeinsenRouting(6, 3, 4, 4), "under 'heinsen' routing the scores of its parents come from the variance"),
        (CapsuleLinear(6, 3, 4, 4, "em"), "under 'em' routing the scores of its parents come from the variance"),
        (
            CapsuleLinear(6, 3, 4, 4, cr.layers.InvertedAttentionRouter(norm=torch.nn.LayerNorm(4))),
            "its norm is a module of its own",
        ),
    ],
)
def test_refusal_says_why(layer, reason):
    given = refusal(layer)
    assert given is None if reason is None else given.startswith(reason)


def test_refusal_names_the_layers_that_could_go_on():
    model = TwoLayers("max_min", class_routing="em")
    with pytest.raises(ValueError, match=r"'stack.layers.1' cannot .* layers=\['stack.layers.0'\] takes the others"):
        layers_for_coefficients(model)
    assert list(layers_for_coefficients(model, ["stack.layers.0"])) == ["stack.layers.0"]


def test_class_layer_is_the_last_one_with_a_parent_for_each_class():
    assert class_layer(TwoLayers(hidden=CLASSES), CLASSES) == "stack.layers.1"
    assert class_layer(OneLayer(), CLASSES + 1) is None


def test_a_convolutional_layer_is_never_the_class_layer():
    model = torch.nn.Module()
    model.routed_layers = lambda: {"only": CapsuleConv2d(2, CLASSES, 4, 4, routing="dynamic")}
    assert class_layer(model, CLASSES) is None


def test_refuses_models_without_routed_layers():
    with pytest.raises(ValueError, match="model: expected at least one routed layer, Linear has none"):
        layers_for_coefficients(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="has none"):
        layers_for_coefficients(cr.inference.fold(OneLayer(), "uniform"))


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


def test_saved_and_loaded_is_the_same(tmp_path):
    master = quiet_accumulate(OneLayer(), make_batches(), filter={"name": "similarity", "fraction": 0.5})
    master.save(tmp_path / "deep" / "master.safetensors")
    again = MasterCoefficients.load(tmp_path / "deep" / "master.safetensors")
    assert list(again) == list(master) == ["capsules"]
    assert torch.equal(again["capsules"], master["capsules"])
    assert torch.equal(again.counts, master.counts)
    assert again.how == master.how
    assert again.how["filter"] == {"name": "similarity", "measure": "pearson", "fraction": 0.5, "threshold": None}


def test_a_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "master.safetensors"
    MasterCoefficients({"a": torch.ones(2, 2)}, torch.ones(2)).save(path)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="disk full"):
        MasterCoefficients({"a": torch.zeros(3, 3)}, torch.ones(3)).save(path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_refuses_other_files(tmp_path):
    with pytest.raises(ValueError, match="found no such file"):
        MasterCoefficients.load(tmp_path / "none.safetensors")
    (tmp_path / "cut").write_bytes(b"12345678{")
    with pytest.raises(ValueError, match="found a damaged one"):
        MasterCoefficients.load(tmp_path / "cut")
    save_file({"weight": torch.ones(2)}, tmp_path / "weights")
    with pytest.raises(ValueError, match="expected master coefficients, found weight"):
        MasterCoefficients.load(tmp_path / "weights")
