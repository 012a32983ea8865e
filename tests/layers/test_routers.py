"""Routers: made from plain data and back, with the options of their papers."""

import json

import pytest

import capsroute as cr
from capsroute.layers import DynamicRouter, list_routings, make_router

OPTIONS = [
    {"name": "dynamic", "iterations": 5, "stop_gradient": True},
    {"name": "max_min", "iterations": 2, "lower": 0.1, "upper": 0.9, "stop_gradient": False},
    {"name": "fast", "learned": True, "activation": None},
    {"name": "pooling", "iterations": 2, "sharpness": 5.0, "activation": "squash", "stop_gradient": True},
    {"name": "inverted_attention", "iterations": 3, "scale": True, "norm": "affine", "activations": True},
    {"name": "em", "iterations": 2, "variance_floor": 1e-3},
    {"name": "heinsen", "iterations": 2, "eps": 1e-3, "single_beta": True, "relative": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["name"])
def test_a_router_survives_json(options):
    router = make_router(options)
    assert router.config() == options
    again = make_router(json.loads(json.dumps(router.config())))
    assert type(again) is type(router)
    assert again.config() == router.config()


def test_every_routing_is_tested_here():
    assert [options["name"] for options in OPTIONS] == list_routings()


def test_a_router_that_is_given_is_copied():
    router = DynamicRouter(iterations=7)
    copy = make_router(router)
    assert copy is not router
    assert copy.iterations == 7


def test_two_layers_of_one_router_share_nothing():
    router = make_router("heinsen")
    layers = [cr.layers.CapsuleLinear(6, 3, 4, 4, routing=router) for _ in range(2)]
    assert layers[0].routing.beta_use is not layers[1].routing.beta_use


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        ("nearest", "routing: expected one of dynamic, max_min, .*, got 'nearest'"),
        ({"iterations": 3}, "routing: expected one of .*, got None"),
        ({"name": "dynamic", "sharpness": 1}, "'dynamic' has options iterations, stop_gradient, got sharpness"),
    ],
)
def test_what_is_wrong_with_a_routing_is_said(routing, message):
    with pytest.raises(ValueError, match=message):
        make_router(routing)
