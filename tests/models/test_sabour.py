"""CapsNet, with every routing."""

import pytest
import torch

import capsroute as cr
from tests.layers.filled import ROUTINGS

LOSSES = {"margin": cr.losses.margin, "spread": cr.losses.spread, "cross_entropy": torch.nn.functional.cross_entropy}


def small(**options):
    torch.manual_seed(0)
    return cr.create_model("capsnet_small", **{"image_size": 8, "num_classes": 3, **options})


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_runs_learns_and_is_scored(routing, tmp_path):
    model, images, labels = small(routing=routing), torch.rand(6, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1, 2])
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    losses = []
    for _ in range(40):
        scores = model(images).scores
        loss = LOSSES[model.default_loss](scores, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
    cr.save_model(model, tmp_path)
    assert torch.equal(cr.load_model(tmp_path)(images).scores, model.eval()(images).scores)


def test_it_is_made_of_the_layers_that_the_paper_names():
    model = cr.create_model("capsnet")
    assert tuple(model.convolution.weight.shape) == (256, 1, 9, 9)
    assert tuple(model.primary_capsules.poses.weight.shape) == (256, 256, 9, 9)
    assert model.primary_capsules.poses.stride == (2, 2)
    assert tuple(model.class_capsules.W.shape) == (1152, 10, 8, 16)
    assert model.class_capsules.routing.iterations == 3


def test_the_cifar_variant_has_1024_capsules_of_4_numbers():
    model = cr.create_model("capsnet_max_min_cifar10")
    assert tuple(model.class_capsules.W.shape) == (1024, 10, 4, 16)
    assert model.class_capsules.routing.name == "max_min"


def test_the_decoder_sees_the_true_capsule_when_told_and_the_longest_when_not():
    model, images = small().eval(), torch.rand(4, 1, 8, 8)
    output = model(images)
    predicted = output.scores.argmax(1)
    assert torch.equal(output.reconstruction, model.decoder(output.poses, predicted))
    other = (predicted + 1) % 3
    told = model(images, other)
    assert torch.equal(told.reconstruction, model.decoder(output.poses, other))
    assert torch.equal(told.scores, output.scores)
    assert not torch.allclose(told.reconstruction, output.reconstruction)
    both = torch.nn.functional.one_hot(predicted, 3) + torch.nn.functional.one_hot(other, 3)
    assert torch.equal(model(images, both).reconstruction, model.decoder(output.poses, both))


def test_the_decoder_can_be_left_out():
    model = small(decoder=None)
    assert model(torch.rand(2, 1, 8, 8)).reconstruction is None
    assert not any("decoder" in name for name in model.state_dict())


def test_std_reaches_the_transforms():
    torch.manual_seed(0)
    fresh = cr.create_model("capsnet", std=0.01).class_capsules.W.std().item()
    assert fresh == pytest.approx(0.0088, rel=0.02)


def test_an_image_too_small_says_so():
    with pytest.raises(ValueError, match="image_size: expected at least 17 x 17 for these kernels, got 16 x 28"):
        cr.create_model("capsnet", image_size=(16, 28))


@pytest.mark.parametrize(("argument", "value"), [("in_channels", 0), ("num_classes", 0), ("image_size", (8, 8, 8))])
def test_arguments_that_are_none_are_named(argument, value):
    with pytest.raises(ValueError, match=f"{argument}: expected"):
        cr.create_model("capsnet_small", **{"image_size": 8, argument: value})
