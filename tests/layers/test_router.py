"""What all routers share: made from plain data and back, registered by name, and what they say about themselves."""

import json

import pytest
import torch

import capsroute as cr
from capsroute.layers import DynamicRouter, Router, list_routings, make_router, register_routing
from tests.layers.filled import ROUTINGS, filled, numbers, scores_for

OPTIONS = [
    {"name": "dynamic", "iterations": 5, "stop_gradient": True},
    {"name": "max_min", "iterations": 2, "lower": 0.1, "upper": 0.9, "stop_gradient": False},
    {"name": "fast", "learned": True, "activation": None},
    {"name": "uniform", "activation": "layer_norm", "competes_over": "children"},
    {"name": "pooling", "iterations": 2, "sharpness": 5.0, "activation": "squash", "stop_gradient": True},
    {
        "name": "inverted_attention",
        "iterations": 3,
        "scale": True,
        "norm": "affine",
        "activations": True,
        "equal": True,
    },
    {"name": "em", "iterations": 2, "variance_floor": 1e-3, "equal": True},
    {"name": "heinsen", "iterations": 2, "eps": 1e-3, "single_beta": True, "relative": True, "soft_k_means": True},
    {"name": "self_attention"},
    {"name": "self_routing", "equal": True},
    {"name": "vb", "iterations": 2, "batch_norm": False, "logits": True, "equal": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: options["name"])
def test_a_router_survives_json(options):
    router = make_router(options)
    assert router.config() == options
    again = make_router(json.loads(json.dumps(router.config())))
    assert type(again) is type(router)
    assert again.config() == router.config()


def test_every_routing_is_tested_here():
    assert {options["name"] for options in OPTIONS} == set(ROUTINGS)


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
        ("dynamc", "got 'dynamc'; did you mean 'dynamic'?"),
        ({"iterations": 3}, "routing: expected one of .*, got None"),
        ({"name": "dynamic", "sharpness": 1}, "'dynamic' has options iterations, stop_gradient, got sharpness"),
        ({"name": "dynamic", "iterations": 0}, "iterations: expected a whole number >= 1, got 0"),
        ({"name": "dynamic", "iterations": True}, "routing: 'dynamic' expects a whole number as iterations, got True"),
        ({"name": "dynamic", "stop_gradient": "false"}, "expects true or false as stop_gradient, got 'false'"),
        ({"name": "max_min", "lower": 1.0}, "lower: expected less than upper, got lower=1.0 and upper=1.0"),
        ({"name": "max_min", "upper": "1"}, "routing: 'max_min' expects a number as upper, got '1'"),
        ({"name": "pooling", "iterations": 0}, "iterations: expected a whole number >= 1, got 0"),
        ({"name": "pooling", "sharpness": float("nan")}, "sharpness: expected a finite number, got nan"),
        ({"name": "inverted_attention", "iterations": 0}, "iterations: expected a whole number >= 1, got 0"),
        ({"name": "em", "iterations": 0}, "iterations: expected a whole number >= 1, got 0"),
        ({"name": "em", "variance_floor": 0}, "variance_floor: expected a number > 0, got 0"),
        ({"name": "heinsen", "iterations": 0}, "iterations: expected a whole number >= 1, got 0"),
        ({"name": "heinsen", "eps": -1.0}, "eps: expected a number > 0, got -1.0"),
        ({"name": "vb", "iterations": 0}, "iterations: expected a whole number >= 1, got 0"),
    ],
)
def test_what_is_wrong_with_a_routing_is_said(routing, message):
    with pytest.raises(ValueError, match=message):
        make_router(routing)


@pytest.mark.parametrize("routing", sorted(set(ROUTINGS) - {"inverted_attention", "fast", "uniform"}))
def test_algorithms_with_state_of_their_own_say_why_they_cannot_be_stepped(routing):
    layer = cr.layers.CapsuleLinear(6, 3, 4, 4, routing=routing)
    assert not layer.routing.can_step()
    with pytest.raises(ValueError, match=f"routing: '{routing}' keeps state over its own iterations"):
        layer.step(torch.zeros(1, 6, 1, 4), None, None)


def test_all_active_children_weigh_one():
    votes = cr.DenseVotes(torch.zeros(2, 3, 4, 1, 5, dtype=torch.float16))
    active = cr.layers.router.all_active(votes)
    assert torch.equal(active, torch.ones(2, 3))


class Bare(Router):
    """Says nothing of itself."""

    def forward(self, votes, scores=None, **options):
        c = torch.full((votes.batch, votes.children, votes.parents), 0.5)
        return cr.Routed(votes.aggregate(c), c)


@pytest.fixture
def registered(monkeypatch):
    """A registry that a test may fill."""
    monkeypatch.setattr(cr.layers.router, "_ROUTERS", dict(cr.layers.router._ROUTERS))


def test_a_registered_router_goes_by_its_name(registered):
    assert register_routing("bare")(Bare) is Bare
    assert cr.layers.CapsuleLinear(6, 3, 4, 4, routing="bare").routing.config() == {"name": "bare"}
    assert "bare" in list_routings()


def test_a_name_that_is_taken_is_refused_and_the_same_class_again_is_not(registered):
    register_routing("bare")(Bare)
    register_routing("bare")(Bare)
    with pytest.raises(ValueError, match=r"name: 'dynamic' is capsroute.layers.dot_routers.DynamicRouter already"):
        register_routing("dynamic")(Bare)
    for name in ("two words", 3):
        with pytest.raises(ValueError, match="name: expected letters, digits and underscores"):
            register_routing(name)
    with pytest.raises(ValueError, match="router: expected a subclass"):
        register_routing("other")(torch.nn.Linear)


def test_what_a_router_does_not_say_is_refused_and_never_guessed(registered):
    register_routing("bare")(Bare)
    layer = cr.layers.CapsuleLinear(6, 3, 4, 4, routing="bare")  # needs to know nothing
    layer(torch.zeros(2, 6, 1, 4))
    for ask in (
        lambda: layer.routing.squashes,
        lambda: layer.routing.child_activation,
        lambda: layer.routing.declared("activation"),
        lambda: cr.models.CapsNet(1, 28, routing="bare"),
    ):
        with pytest.raises(ValueError, match=r"routing: 'bare' does not say its activation; set Bare.activation to"):
            ask()
    with pytest.raises(ValueError, match=r"set Bare.competes_over to 'parents' or 'children'"):
        layer.routing.first_coefficient(6, 3)
    with pytest.raises(ValueError, match=r"set Bare.container_rows to"):
        layer.routing.normalise_rows(torch.zeros(1, 6, 3))
    with pytest.raises(ValueError, match=r"define Bare.uniform"):
        layer.routing.uniform()
    assert "set Bare.takes_coefficients to True, or to the reason" in layer.routing.refuses_coefficients()
    layer.routing.takes_coefficients = True
    assert "set Bare.activation" in layer.routing.refuses_coefficients()
    layer.routing.activation = torch.tanh
    assert "function that fast routing has not" in layer.routing.refuses_coefficients()


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("activation", "sqash"),
        ("competes_over", "parent"),
        ("takes_coefficients", False),
        ("container_rows", "softmx"),
    ],
)
def test_a_word_that_nobody_knows_is_refused_and_not_taken_for_its_opposite(attribute, value, registered):
    class Typo(Bare):
        pass

    setattr(Typo, attribute, value)
    with pytest.raises(ValueError, match=rf"Typo.{attribute}: expected .*, got {value!r}"):
        register_routing("typo")(Typo)
    delattr(Typo, attribute)
    router = register_routing("typo")(Typo)()
    setattr(router, attribute, value)  # as an option in __init__ would
    with pytest.raises(ValueError, match=rf"Typo.{attribute}: expected .*, got {value!r}"):
        router.declared(attribute)


def test_a_router_that_does_not_route_is_named():
    with pytest.raises(NotImplementedError, match=r"routing: Silent defines no forward\(votes, scores\)"):
        type("Silent", (Router,), {"name": "silent"})()(None)


def poses_and_coefficients(votes):
    c = votes.filled(0.5)
    return votes.aggregate(c), c


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (lambda poses, c: poses, "gives Tensor, expected a capsroute.Routed"),
        (lambda poses, c: (poses, c), "gives tuple, expected a capsroute.Routed"),
        (lambda poses, c: None, "gives NoneType, expected a capsroute.Routed"),
        (
            lambda poses, c: cr.Routed(poses.squeeze(2), c),
            r"gives poses \(\d+, 3, 5\), expected \(\d+, 3, 1, 5\) \[b,j,a,o\]",
        ),
        (lambda poses, c: cr.Routed(poses.mT, c), r"gives poses \(\d+, 3, 5, 1\), expected"),
        (
            lambda poses, c: cr.Routed(poses, c.mT),
            r"gives coefficients \(\d+, 3, 18\), expected \(\d+, 18, 3\) \[b,i,j\]",
        ),
        (lambda poses, c: cr.Routed(poses, None), r"gives coefficients None, expected \(\d+, 18, 3\)"),
        (lambda poses, c: cr.Routed(poses, c, c[:, 0, 0]), r"gives scores \(\d+,\), expected \(\d+, 3\) \[b,j\]"),
        (lambda poses, c: cr.Routed(poses, c), r"gives scores None, expected \(\d+, 3\) \[b,j\]"),
        (lambda poses, c: cr.Routed(poses, c, c[:, 0], c), r"gives variances .*, expected \(\d+, 3, 1, 5\)"),
    ],
)
def test_what_a_router_gives_is_looked_at(give, message):
    class Careless(Router):
        name, scores_classes = "careless", True

        def forward(self, votes, scores=None, **options):
            return give(*poses_and_coefficients(votes))

        def step(self, votes, scores, parents, coefficients=True):
            return self.forward(votes)

    linear = cr.layers.CapsuleLinear(18, 3, 4, 5, routing=Careless())
    conv = cr.layers.CapsuleConv2d(2, 3, 4, 5, kernel_size=3, routing=Careless())
    for layer, poses in ((linear, torch.zeros(2, 18, 1, 4)), (conv, torch.zeros(2, 2, 1, 4, 4, 4))):
        with pytest.raises(ValueError, match=f"routing: 'careless' {message}"):
            layer(poses, return_coefficients=True)
        with pytest.raises(ValueError, match=f"routing: 'careless' {message}"):
            layer.step(poses, None, None, return_coefficients=True)


@pytest.mark.parametrize("routing", ROUTINGS)
def test_scores_that_nobody_reads_are_not_passed_over_in_silence(routing, recwarn):
    layer = cr.layers.CapsuleLinear(6, 3, 4, 4, routing=routing)
    layer(torch.zeros(2, 6, 1, 4), torch.ones(2, 6))
    warned = [str(warning.message) for warning in recwarn]
    if layer.routing.mask_kind is None:
        assert [message.split(",")[0] for message in warned] == [f"scores: {routing!r} routing reads none"]
    else:
        assert not warned


def test_a_stack_hands_scores_on_to_layers_that_read_none(recwarn):
    layers = [cr.layers.CapsuleLinear(6, 6, 4, 4, routing=name) for name in ("em", "dynamic")]
    cr.layers.CapsuleStack(layers)(torch.zeros(2, 6, 1, 4), torch.ones(2, 6))
    assert not recwarn.list


def test_another_forward_does_not_inherit_how_it_accumulates():
    class Renamed(DynamicRouter):
        pass

    class Cooler(DynamicRouter):
        def forward(self, votes, scores=None, **options):
            return cr.uniform_routing(votes)

    class Same(DynamicRouter):
        accumulates = "softmax"
        forward = Cooler.forward

    assert (Renamed.accumulates, Cooler.accumulates, Same.accumulates) == ("softmax", None, "softmax")


@pytest.mark.parametrize("name", [name for name in ROUTINGS if make_router(name).adapts])
def test_uniform_keeps_the_first_coefficients(name):
    layer = filled(cr.layers.CapsuleLinear(6, 3, 4, 4, routing=name))
    poses, router = numbers(2, 6, 1, 4), layer.routing
    first = router.first_coefficient(6, 3)
    assert layer(poses, scores_for(layer, 2, 6), True).coefficients.unique().numel() > 1
    layer.routing = router.uniform()
    equal = layer(poses, scores_for(layer, 2, 6), return_coefficients=True)
    torch.testing.assert_close(equal.coefficients, torch.full_like(equal.coefficients, first), rtol=1e-15, atol=0)
    assert {id(p) for p in layer.routing.parameters()} <= {id(p) for p in router.parameters()}
    if router.refuses_coefficients() is None:
        given = cr.fast_routing(layer.votes(poses), torch.full((6, 3), first, dtype=torch.float64))
        if router.activation == "squash":
            torch.testing.assert_close(equal.poses, given.poses)
