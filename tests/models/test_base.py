"""The arguments that made a model."""

import copy
import json

import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.layers import HeinsenRouter
from tests.models.inputs import IMAGES, NAMES, inputs, settled, small


def test_defaults_positions_keywords_tuples_and_routers_are_all_kept_as_plain_data():
    model = cr.models.CapsNet(3, (20, 22), routing=HeinsenRouter(iterations=2), decoder=(5, 6))
    assert model.config["in_channels"] == 3
    assert model.config["image_size"] == [20, 22]
    assert model.config["num_classes"] == 10
    assert model.config["decoder"] == [5, 6]
    options = {"iterations": 2, "eps": 1e-5, "single_beta": False, "relative": False, "soft_k_means": False}
    assert model.config["routing"] == {"name": "heinsen", **options}
    json.dumps(model.config)


def test_the_arguments_are_those_of_the_class_that_was_made():
    class Wider(cr.models.CapsNet):
        def __init__(self, width: int = 2):
            super().__init__(image_size=20, channels=4 * width)

    assert Wider(3).config == {"width": 3}


def test_a_class_without_an_init_of_its_own_keeps_those_of_its_base():
    class Renamed(cr.models.CapsNet):
        pass

    assert Renamed(image_size=20).config["image_size"] == 20


@pytest.mark.parametrize("name", IMAGES)
def test_forward_is_features_then_head(name):
    model = settled(small(name))
    images = inputs(model)
    features = model.forward_features(images)
    assert features.shape[:2] == (3, model.num_features)
    if type(model).forward is not cr.models.ImageModel.forward:
        return  # a head that takes maps of several depths
    assert torch.equal(model.forward_head(features).scores, model(images).scores)


@pytest.mark.parametrize("name", NAMES)
def test_a_reset_classifier_is_the_only_thing_that_changes(name, tmp_path):
    model = settled(small(name))
    before = copy.deepcopy(model.state_dict())
    classifier = cr.models.base.classifier_name(model)
    model.reset_classifier(5, ["a", "b", "c", "d", "e"])
    output = model(inputs(model))
    assert output.scores.shape == (3, 5)
    assert model.classes == ("a", "b", "c", "d", "e")
    for key, tensor in model.state_dict().items():
        if not key.startswith((f"{classifier}.", "decoder.layers.0")):
            assert torch.equal(tensor, before[key]), key
    assert model.get_classifier() is model.get_submodule(classifier)
    cr.save_model(model, tmp_path)
    assert torch.equal(cr.load_model(tmp_path)(inputs(model)).scores, output.scores)


def test_a_swapped_routing_stays_with_the_new_classifier():
    model = small("capsnet_small")
    model.class_capsules.set_routing({"name": "max_min", "iterations": 2})
    model.reset_classifier(5)
    assert model.class_capsules.routing.config()["name"] == "max_min"
    assert model.class_capsules.routing.iterations == 2


def test_names_go_when_they_are_not_given_and_none_is_refused():
    model = small("capsnet_small")
    model.set_preprocessing(classes=["a", "b", "c"])
    model.reset_classifier(4)
    assert model.classes is None
    with pytest.raises(ValueError, match="classes: expected 4 names, got 1"):
        model.reset_classifier(4, ["a"])
    with pytest.raises(ValueError, match="num_classes: expected a whole number >= 1, got 0; forward_features"):
        model.reset_classifier(0)


def test_whole_numbers_of_numpy_are_refused_with_what_to_write():
    with pytest.raises(ValueError, match=r"num_classes: expected a whole number .* write int\(num_classes\)"):
        cr.create_model("capsnet_small", num_classes=np.arange(3).max() + 1)


@pytest.mark.parametrize("name", ["capsnet_max_min", "zhao_huang_resnet20", "tsai_resnet_cifar10"])
def test_trained_weights_with_another_number_of_classes(name):
    ten, three = cr.create_model(name, pretrained=True), cr.create_model(name, pretrained=True, num_classes=3)
    image = torch.rand(1, *ten.input_shape)
    assert three(image).scores.shape == (1, 3)
    assert torch.equal(three.forward_features(image), ten.forward_features(image))
    assert three.classes is None


@pytest.mark.parametrize("name", ["capsnet_small", "zhao_huang_resnet20", "tsai_simple_cifar10"])
def test_frozen_features_keep_weights_and_batch_statistics(name):
    model = settled(small(name))
    model.freeze_features()
    model.train()
    before = copy.deepcopy(model.state_dict())
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.SGD(trained, lr=0.1)
    output = model(inputs(model), torch.tensor([0, 1, 2]))
    output.scores.square().sum().backward()
    optimiser.step()
    classifier = cr.models.base.classifier_name(model)
    changed = {key for key, tensor in model.state_dict().items() if not torch.equal(tensor, before[key])}
    assert changed
    assert all(key.startswith(classifier) for key in changed)
    model.freeze_features(False)
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
