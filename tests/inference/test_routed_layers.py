import pytest
import torch

import capsroute as cr
from capsroute.inference.routed_layers import class_layer, layers_for_coefficients, refusal
from capsroute.layers import CapsuleConv2d, CapsuleGlobal2d, CapsuleLinear, HeinsenRouting
from tests.inference.networks import CLASSES, OneLayer, TwoLayers


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
    with pytest.raises(ValueError, match="expected one with routed_layers"):
        layers_for_coefficients(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="has none"):
        layers_for_coefficients(cr.inference.fold(OneLayer(), "uniform"))
