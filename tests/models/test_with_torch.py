"""Models with what people use around them: torch.export.save, torch.func, meta and fake tensors, empty batches."""

import io

import pytest
import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.func import functional_call, grad, vmap

import capsroute as cr
from tests.models.inputs import NAMES, ROUTINGS, inputs, settled, small


@pytest.mark.parametrize("name", ["capsnet_small", "tsai_simple_cifar10", "tsai_em_simple", "heinsen_sst"])
def test_an_exported_program_can_be_saved(name):
    model = settled(small(name))
    program = torch.export.export(model, (inputs(model),))
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    again = torch.export.load(stream).module()(inputs(model))
    assert isinstance(again, cr.models.ModelOutput)
    torch.testing.assert_close(again.scores, model(inputs(model)).scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_give_shapes(name):
    with torch.device("meta"):
        model = small(name).eval()
        images = torch.empty(2, *[5 if side is None else side for side in model.input_shape])
        output = model(images)
    assert output.scores.device.type == "meta"
    assert output.scores.shape == (2, model.num_classes)


@pytest.mark.parametrize("name", sorted(ROUTINGS))
def test_fake_tensors_give_shapes(name):
    """They are on the CPU, and have no values that could be looked at."""
    model = settled(small(name))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        output = model(mode.from_tensor(inputs(model)))
    assert isinstance(output.scores, FakeTensor)
    expected = model(inputs(model))
    for field in ("scores", "poses"):
        fake, real = getattr(output, field), getattr(expected, field)
        assert (fake is None) == (real is None), field
        assert fake is None or (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device), field


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_made_without_memory_it_takes_weights_and_is_the_same(name, assign):
    model = settled(small(name))
    with torch.device("meta"):
        again = small(name)
    if not assign:
        again.to_empty(device="cpu")
        for buffer in again.buffers():  # what a state dict does not hold is whatever the memory held
            buffer.fill_(-1)
    again.load_state_dict(model.state_dict(), assign=assign)
    images = inputs(model)
    given = [images] if None in model.input_shape else [images, (255 * images).to(torch.uint8)]
    for some in given:
        assert torch.equal(again.eval()(some).scores, model(some).scores)


def test_assigned_weights_of_another_dtype_bring_it_along():
    model = settled(small("capsnet_small")).double()
    with torch.device("meta"):
        again = small("capsnet_small")
    again.load_state_dict(model.state_dict(), assign=True)
    again.eval().reset_classifier(2, ["cat", "dog"])
    again.set_preprocessing(mean=[0.5], deviation=[0.25])
    assert again((255 * inputs(model)).to(torch.uint8)).scores.dtype == torch.float64
    assert cr.predict(again, inputs(model)[0])[0].label in ("cat", "dog")


@pytest.mark.parametrize("name", NAMES)
def test_a_model_in_float64_computes_in_float64(name):
    """Something in float32 on the way would leave difference quotients no digits."""
    model = settled(small(name)).double()
    for layer in model.routed_layers().values():
        layer.routing.stop_gradient = False
    images = inputs(model, batch=2).double().requires_grad_()
    assert model(images).scores.dtype == torch.float64
    assert torch.autograd.gradcheck(lambda images: model(images).scores, images, fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
def test_an_empty_batch_is_a_batch(name):
    model = settled(small(name))
    images = inputs(model)[:0]
    output = model(images, return_coefficients=True)
    assert output.scores.shape == (0, model.num_classes)
    assert all(coefficients.shape[0] == 0 for coefficients in output.coefficients.values())


@pytest.mark.parametrize(
    ("name", "loss"),
    [("capsnet_small", cr.losses.margin), ("capsnet_max_min", cr.losses.margin), ("tsai_em_simple", cr.losses.spread)],
)
def test_gradients_sample_by_sample_with_integer_labels(name, loss):
    model = settled(small(name)).double()
    images, labels = inputs(model).double(), torch.tensor([0, 2, 1])
    weights = dict(model.named_parameters())

    def of_one(weights, image, label):
        output = functional_call(model, weights, (image[None], label[None]))
        drawn = 0 if output.reconstruction is None else output.reconstruction.square().mean()
        return loss(output.scores, label[None]) + drawn

    found = vmap(grad(of_one), in_dims=(None, 0, 0))({k: v.detach() for k, v in weights.items()}, images, labels)
    for row in range(3):
        model.zero_grad()
        of_one(weights, images[row], labels[row]).backward()
        for key, parameter in weights.items():
            expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(found[key][row], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["tsai_multimnist_matrix", "tsai_multimnist_vector", "tsai_simple_cifar10"])
def test_gradients_compiled_by_aot_eager_are_the_same(name):
    torch.compiler.reset()
    model = settled(small(name))
    images = inputs(model)
    gradients = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        call(images).scores.square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None])
    for one, other in zip(*gradients):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_an_exported_layer_can_be_saved():
    torch.manual_seed(0)
    layer = cr.layers.CapsuleLinear(6, 3, 8, 16).eval()
    for module, example in (
        (layer, torch.randn(2, 6, 1, 8)),
        (cr.layers.PrimaryCapsules(4, 2, 8), torch.rand(2, 4, 5, 5)),
    ):
        stream = io.BytesIO()
        torch.export.save(torch.export.export(module, (example,)), stream)
        stream.seek(0)
        again = torch.export.load(stream).module()(example)
        assert type(again) is type(module(example))
        torch.testing.assert_close(again.poses, module(example).poses)


@pytest.mark.parametrize(
    "make",
    [
        lambda: cr.layers.CapsuleLinear(4, 0, 8, 16),
        lambda: cr.layers.CapsuleConv2d(4, 0, (4, 4), (4, 4), kernel_size=3),
        lambda: cr.dynamic_routing(cr.DenseVotes(torch.zeros(2, 3, 0, 4))),
        lambda: cr.max_min_routing(cr.DenseVotes(torch.zeros(2, 3, 0, 4))),
        lambda: cr.inverted_attention_routing(cr.DenseVotes(torch.zeros(2, 3, 0, 4))),
    ],
)
def test_no_parents_are_refused_with_a_sentence(make):
    with pytest.raises(
        ValueError, match=r"(parents|out_capsules): expected a whole number >= 1|votes: expected at least one parent"
    ):
        make()
