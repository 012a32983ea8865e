"""The page's answers are the model's."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from capsroute.analysis import coupling_maps, parse_tree
from capsroute.explorer.engine import Engine
from capsroute.explorer.pictures import Refused, from_message
from tests.explorer.conftest import exhibit


def close(shown, expected):
    """Equal to the precision of a byte."""
    torch.testing.assert_close(shown, expected, atol=1 / 255, rtol=0)


def test_predictions_are_the_models_with_and_without_routing(one_digit):
    image = torch.rand(1, 8, 8)
    answer = Engine(one_digit).predict(image)
    output = one_digit.model(image[None])
    assert answer["dynamic"] == pytest.approx(output.scores[0].tolist())
    assert answer["fast"] == pytest.approx(one_digit.fast(image[None]).scores[0].tolist())
    (capsule,) = answer["found"]
    best = int(output.scores.argmax())
    assert capsule["class"] == best
    assert capsule["pose"] == pytest.approx(output.poses[0, best].flatten().tolist())
    torch.testing.assert_close(
        from_message(capsule["picture"]), output.reconstruction[0].detach(), atol=1 / 255, rtol=0
    )


def test_two_digits_are_found_where_both_are_likely(two_digits):
    engine, image = Engine(two_digits), torch.rand(1, 8, 8)
    scores = torch.zeros(10)
    scores[[4, 7]] = torch.tensor([0.6, 0.9])
    assert engine._found(scores) == [7, 4]
    scores[4] = 0.4
    assert engine._found(scores) == [7]
    assert {capsule["class"] for capsule in engine.predict(image)["found"]} <= set(range(10))


def test_reconstruction_follows_the_pose(one_digit):
    engine, image = Engine(one_digit), torch.rand(1, 8, 8)
    (capsule,) = engine.predict(image)["found"]
    same = engine.reconstruct(capsule["class"], capsule["pose"])
    assert same["picture"] == capsule["picture"]
    moved = [number + 0.5 * (at == 2) for at, number in enumerate(capsule["pose"])]
    assert engine.reconstruct(capsule["class"], moved)["picture"] != capsule["picture"]


@pytest.mark.parametrize(("name", "count"), [(10, 8), (-1, 8), (3, 7), (3, 0)])
def test_a_pose_that_is_none(one_digit, name, count):
    with pytest.raises(Refused, match="capsule: expected a class and 8 numbers"):
        Engine(one_digit).reconstruct(name, [0.0] * count)


def test_routing_is_that_of_the_analysis(one_digit):
    image = torch.rand(1, 8, 8)
    answer = Engine(one_digit).route(image)
    assert len(answer["lengths"]) == len(answer["shares"]) == len(answer["coefficients"]) == 3
    assert answer["lengths"][-1] == pytest.approx(one_digit.model(image[None]).scores[0].tolist())
    maps = coupling_maps(one_digit.model, image[None]).maps[0]
    heat = answer["coefficients"][-1]
    top, left, bottom, right = heat["box"]
    for name in (0, 9):
        expected = maps[name, top:bottom, left:right] / heat["most"][name]
        close(from_message(heat["maps"][name])[0], expected)
    shares = parse_tree(one_digit.model, image).maps.clamp_min(0)[5, top:bottom, left:right]
    heat = answer["shares"][-1]
    torch.testing.assert_close(
        from_message(heat["maps"][5])[0] * heat["most"][5], shares, atol=heat["most"][5] / 255, rtol=0
    )


def test_models_without_a_decoder_and_with_several_layers_are_shown_as_far_as_they_go():
    import capsroute as cr

    options = cr.models.small_options("tsai_simple_cifar10")
    plain = exhibit()
    model = cr.create_model("tsai_simple_cifar10", **options).eval()
    shown = type(plain)("stack", model, None, ("a", "b", "c"), torch.zeros(0, *model.input_shape), ())
    engine, image = Engine(shown), torch.rand(model.input_shape)
    assert engine.describe()["decoder"] is False
    answer = engine.predict(image)
    assert answer["fast"] is None
    assert sum(answer["dynamic"]) == pytest.approx(1, abs=1e-5)  # logits are shown as probabilities
    assert answer["found"][0]["picture"] is None
    routed = engine.route(image)
    assert routed["coefficients"] is None
    assert len(routed["shares"]) == 2
    with pytest.raises(Refused, match="no decoder"):
        engine.reconstruct(0, [0.0] * 16)


def test_images_are_normalised_as_in_the_run():
    plain = exhibit()
    mean, std = torch.tensor([[[0.3]]]), torch.tensor([[[0.5]]])
    normalised = Engine(type(plain)(**{**vars(plain), "normalise": (mean, std)}))
    image = torch.rand(1, 8, 8)
    expected = plain.model((image[None] - 0.3) / 0.5).scores[0].tolist()
    answer = normalised.predict(image)
    assert answer["dynamic"] == pytest.approx(expected)
    close(from_message(answer["seen"]), image)


def test_questions_at_the_same_time_do_not_mix(one_digit):
    engine, images = Engine(one_digit), torch.rand(8, 1, 8, 8)
    alone = [engine.route(image)["lengths"] for image in images]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            predicted = pool.map(engine.predict, images)
            together = [answer["lengths"] for answer in pool.map(engine.route, images)]
            assert together == alone
            assert len(list(predicted)) == 8
