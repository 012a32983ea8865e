"""The arguments that made a model."""

import json

import capsroute as cr
from capsroute.layers import HeinsenRouter


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
