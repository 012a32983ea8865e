import pytest
import torch

import capsroute as cr
from capsroute.layers import CapsuleConv2d, CapsuleLinear, RoutedLayer, Router
from tests.inference.networks import OneLayer, TwoLayers, make_batches, quiet_accumulate


def random_coefficients(model):
    generator = torch.Generator().manual_seed(5)
    shapes = {name: matrix.shape for name, matrix in cr.inference.uniform_coefficients(model).items()}
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


ROUTINGS = [
    "max_min",
    "dynamic",
    "pooling",
    "inverted_attention",
    {"name": "inverted_attention", "norm": "affine"},
    {"name": "inverted_attention", "norm": "none"},
]


@pytest.mark.parametrize("routing", ROUTINGS, ids=str)
@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda routing: OneLayer(routing), 5),
        (lambda routing: OneLayer(routing, bias=True), 5),
        (lambda routing: TwoLayers(routing, padding=1), 7),
        (lambda routing: TwoLayers(routing, padding=0), 7),
    ],
    ids=["linear", "bias", "convolution with padding", "convolution"],
)
def test_folded_equals_unfolded(make, size, routing):
    torch.manual_seed(0)
    model = make(routing).double()
    for name, parameter in model.named_parameters():
        if "layer_norm" in name:
            torch.nn.init.normal_(parameter)
    coefficients = random_coefficients(model)
    fast, folded = cr.inference.with_coefficients(model, coefficients), cr.inference.fold(model, coefficients)
    for batch in (1, 3, 0):
        images = torch.rand(batch, 1, size, size, dtype=torch.float64)
        torch.testing.assert_close(folded(images).poses, fast(images).poses, rtol=1e-12, atol=1e-14)


def test_folded_equals_unfolded_in_float32_up_to_rounding():
    torch.manual_seed(0)
    model = cr.create_model("capsnet", routing="max_min")
    coefficients = random_coefficients(model)
    fast, folded = cr.inference.with_coefficients(model, coefficients), cr.inference.fold(model, coefficients)
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(folded(images).poses, fast(images).poses, rtol=1e-5, atol=1e-6)


def test_a_folded_model_has_no_routing_in_it():
    folded = cr.inference.fold(TwoLayers("inverted_attention", schedule="concurrent"), "uniform")
    assert not any(isinstance(module, (Router, RoutedLayer)) for module in folded.modules())
    assert not folded.routed_layers()
    assert not any("coefficients" in name for name in folded.state_dict())
    assert folded(torch.rand(2, 1, 7, 7)).scores.shape == (2, 4)


def test_each_layer_becomes_one_matrix_or_one_convolution():
    folded = cr.inference.fold(TwoLayers("max_min", hidden=3), "uniform")
    hidden, classes = folded.stack.layers
    assert hidden.weight.shape == (3 * 2, 2 * 3, 3, 3)
    assert classes.weight.shape == (4 * 4, 27 * 2)


def test_only_layers_with_coefficients_are_folded():
    model = TwoLayers("max_min")
    folded = cr.inference.fold(model, {"stack.layers.0": torch.rand(18, 3)})
    assert isinstance(folded.stack.layers[1], CapsuleLinear)
    assert not isinstance(folded.stack.layers[0], CapsuleConv2d)


def test_folds_a_model_that_has_coefficients_already():
    model = OneLayer()
    fast = cr.inference.with_coefficients(model, "uniform", learned=True)
    images = torch.rand(2, 1, 5, 5)
    torch.testing.assert_close(cr.inference.fold(fast)(images).poses, fast(images).poses)
    with pytest.raises(ValueError, match="expected a routed layer with given coefficients, found none"):
        cr.inference.fold(model)


def test_a_folded_layer_says_that_it_has_no_coefficients():
    folded = cr.inference.fold(OneLayer(), "uniform")
    with pytest.raises(ValueError, match="return_coefficients: a folded layer has none"):
        folded(torch.rand(2, 1, 5, 5), return_coefficients=True)


def test_whole_way_from_data_to_folded_network():
    torch.manual_seed(0)
    model, batches = OneLayer("max_min"), make_batches()
    master = quiet_accumulate(model, batches)
    images = batches[0][0]
    expected = cr.inference.with_coefficients(model, master)(images).scores
    torch.testing.assert_close(cr.inference.fold(model, master)(images).scores, expected)


def foldable(name):
    model = cr.create_model(name, **cr.models.small_options(name))
    layers = model.routed_layers()
    return bool(layers) and all(cr.inference.refusal(layer) is None for layer in layers.values())


@pytest.mark.parametrize("name", [name for name in cr.list_models() if foldable(name)])
def test_every_registered_model_folds(name):
    torch.manual_seed(0)
    model = cr.create_model(name, **cr.models.small_options(name)).double().eval()
    coefficients = random_coefficients(model)
    fast, folded = cr.inference.with_coefficients(model, coefficients), cr.inference.fold(model, coefficients)
    images = torch.rand(2, *model.input_shape, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(folded(images).scores, fast(images).scores, rtol=1e-10, atol=1e-12)


def test_most_registered_models_of_the_papers_fold():
    found = {name for name in cr.list_models() if foldable(name)}
    assert {"capsnet", "capsnet_max_min", "tsai_simple_cifar10", "tsai_resnet_cifar100", "tsai_dynamic_resnet"} <= found
