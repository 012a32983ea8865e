"""What must hold for every registered model. Registering one is all it takes to be here."""

import copy
import json

import pytest
import torch

import capsroute as cr
from tests.models.inputs import IMAGES, NAMES, ONE_EACH, inputs, settled, small

LOSSES = {"margin", "cross_entropy", "binary_cross_entropy", "spread"}


def assert_same_output(given, expected, tolerance=0.0):
    for field in ("scores", "poses", "reconstruction"):
        one, other = getattr(given, field), getattr(expected, field)
        assert (one is None) == (other is None), field
        if one is not None:
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward(name):
    model = small(name)
    images, labels = inputs(model), torch.tensor([0, 2, 1])
    output = model(images, labels)
    assert output.scores.shape == (3, model.num_classes)
    assert output.coefficients is None
    if output.reconstruction is not None:
        assert output.reconstruction.shape == images.shape
    loss = torch.nn.functional.cross_entropy(output.scores, labels)
    (loss + (0 if output.reconstruction is None else output.reconstruction.square().mean())).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name):
    model = small(name)
    assert model.name == name
    assert model.score_kind in {"length", "logit", "probability"}
    assert model.default_loss in LOSSES
    assert json.loads(json.dumps(model.config)) == model.config
    assert cr.models.registry.registered(name).__doc__
    scores = settled(model)(inputs(model)).scores
    if model.score_kind != "logit":
        assert 0 <= scores.min() <= scores.max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_one_is_a_row_of_a_batch(name):
    model = settled(small(name))
    images = inputs(model)
    batch, one = model(images), model(images[1:2])
    torch.testing.assert_close(one.scores[0], batch.scores[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_is_deterministic_and_asking_for_coefficients_changes_nothing(name):
    model = settled(small(name))
    images = inputs(model)
    first, asked = model(images), model(images, return_coefficients=True)
    assert_same_output(model(images), first)
    assert_same_output(asked, first)
    assert set(model.routed_layers()) <= set(asked.coefficients)
    for layer, coefficients in asked.coefficients.items():
        assert coefficients.dim() in (3, 5), layer
        assert coefficients.shape[0] == 3


@pytest.mark.parametrize("channels", [1, 2, 3])
@pytest.mark.parametrize("name", IMAGES)
def test_odd_sizes_channels_and_numbers_of_classes(name, channels):
    height, width = (side + 5 for side in small(name).input_shape[1:])
    model = small(name, in_channels=channels, image_size=(height, width + 2), num_classes=7)
    output = settled(model)(inputs(model))
    assert output.scores.shape == (3, 7)
    if output.reconstruction is not None:
        assert output.reconstruction.shape == (3, channels, height, width + 2)


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_too_small_says_the_smallest_that_fits(name):
    smallest = next(size for size in range(1, 64) if not _refuses(name, size))
    settled(small(name, image_size=smallest))(torch.rand(2, small(name).input_shape[0], smallest, smallest))
    if smallest > 1:
        with pytest.raises(ValueError, match=f"image_size: expected at least {smallest} x {smallest}"):
            small(name, image_size=smallest - 1)


def _refuses(name, size) -> bool:
    try:
        small(name, image_size=size)
    except ValueError:
        return True
    return False


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_the_wrong_shape_are_named(name):
    model = small(name)
    channels, height, width = model.input_shape
    for shape in [(2, channels + 1, height, width), (channels, height, width), (2, channels, 1, width)]:
        with pytest.raises(ValueError, match="images: expected"):
            model(torch.rand(shape))


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_is_the_same(name, tmp_path):
    model = settled(small(name))
    cr.save_model(model, tmp_path)
    again = cr.load_model(tmp_path)
    assert type(again) is type(model)
    assert (again.name, again.config, again.training) == (model.name, model.config, False)
    assert_same_output(again(inputs(model)), model(inputs(model)))


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_independent(name):
    model = settled(small(name))
    before = model(inputs(model))
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert_same_output(model(inputs(model)), before)
    assert twin.config == model.config


@pytest.mark.parametrize("name", ONE_EACH)
def test_compiled_it_is_the_same(name):
    torch.compiler.reset()
    model = settled(small(name))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert_same_output(compiled(inputs(model)), model(inputs(model)), tolerance=1e-5)


@pytest.mark.parametrize("name", ONE_EACH)
def test_exported_it_is_the_same_for_any_batch(name):
    model = settled(small(name))
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(model, (inputs(model),), dynamic_shapes=({0: batch},))
    more = inputs(model, batch=5, seed=3)
    with torch.no_grad():
        assert_same_output(program.module()(more), model(more), tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["capsnet_small", "tsai_simple_cifar10", "heinsen_smallnorb"])
def test_compiled_by_inductor_it_is_the_same_forwards_and_backwards(name):
    torch.compiler.reset()
    model = small(name).eval()
    images = inputs(model)
    gradients = []
    for call in (model, torch.compile(model, fullgraph=True)):
        model.zero_grad()
        scores = call(images).scores
        scores.square().sum().backward()
        gradients.append([scores.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("routing", ["em", "heinsen", "dynamic"])
@pytest.mark.parametrize("name", ["capsnet_small", "tsai_em_simple", "heinsen_smallnorb"])
def test_variances_come_out_where_the_routing_has_them(name, routing):
    model = cr.create_model(name, **cr.models.small_options(name) | {"routing": routing})
    output = model(torch.rand(2, *model.input_shape))
    if routing == "dynamic":
        assert output.variances is None
    else:
        assert output.variances.shape == output.poses.shape
        assert (output.variances > 0).all()
