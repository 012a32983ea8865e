"""What the page is told about a network."""

import base64

import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.explorer.engine import MOST_ROWS, Engine, Refused, as_message, images_of, poses_of
from capsroute.explorer.network import load_network
from tests.explorer.conftest import network


def floats(text, *shape):
    return torch.from_numpy(np.frombuffer(base64.b64decode(text), "<f4").copy()).view(*shape)


def test_scores_are_the_models(one_digit):
    images = torch.randint(256, (3, 1, 8, 8), dtype=torch.uint8)
    answer = Engine(one_digit).look(images, ("scores", "poses"))
    output = one_digit.model(images.float() / 255)
    torch.testing.assert_close(answer["scores"], output.scores.detach())
    torch.testing.assert_close(answer["poses"], output.poses.flatten(2).detach())


def test_images_are_normalised_by_the_model_itself(one_digit):
    images = torch.randint(256, (1, 1, 8, 8), dtype=torch.uint8)
    plain = Engine(one_digit).look(images, ("scores",))["scores"]
    one_digit.model.set_preprocessing(mean=[0.3], deviation=[0.5])
    normalised = Engine(one_digit).look(images, ("scores",))["scores"]
    assert not torch.allclose(plain, normalised)
    torch.testing.assert_close(normalised, one_digit.model(images).scores.detach())


def test_axes_are_principal_and_fixed(one_digit):
    engine = Engine(one_digit)
    votes = engine.look(one_digit.samples, ("votes",))["votes"]  # [n, i, j, d]
    routing = engine.describe()["routing"]
    axes = floats(routing["axes"], 10, 2, 8)
    torch.testing.assert_close(axes @ axes.mT, torch.eye(2).expand(10, 2, 2), atol=1e-5, rtol=0)
    for j in (0, 7):
        of_j = votes[:, :, j].flatten(0, 1)
        _, values, _ = torch.linalg.svd(of_j)
        seen = (of_j @ axes[j].T).square().sum(0)
        torch.testing.assert_close(seen, values[:2].square(), rtol=1e-3, atol=0)
    assert routing["axes"] == Engine(one_digit).describe()["routing"]["axes"]


def test_places_are_those_of_the_digits():
    about = Engine(load_network()).describe()
    places = about["routing"]["places"]
    assert places["rows"] == places["columns"] == [8.0, 10.0, 12.0, 14.0, 16.0, 18.0]
    assert places["field"] == [17.0, 17.0]
    assert about["digits"]
    assert about["centred"]
    assert about["scores"] == "length"


def test_master_coefficients_travel_exactly():
    shown = load_network()
    routing = Engine(shown).describe()["routing"]
    assert torch.equal(floats(routing["master"], 288, 10), shown.master["class_capsules"].float())
    assert routing["uniform"] == 1.0  # what max-min starts from


def test_a_network_of_probabilities_says_so():
    model = cr.create_model("zhao_huang_resnet20", **cr.models.small_options("zhao_huang_resnet20")).eval()
    shown = type(network())("pooled", model, None, ("a", "b", "c"), torch.zeros(0, *model.input_shape), ())
    about = Engine(shown).describe()
    assert about["scores"] == "probability"
    assert about["routing"] is None
    assert about["decoder"] is None
    assert not about["digits"]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_answers_do_not_depend_on_who_asks_at_the_same_time(one_digit, count):
    engine = Engine(one_digit)
    images = torch.randint(256, (count, 1, 8, 8), dtype=torch.uint8)
    together = engine.look(images, ("votes", "scores"))
    for at in range(count):
        alone = engine.look(images[at : at + 1], ("votes", "scores"))
        torch.testing.assert_close(alone["votes"][0], together["votes"][at])
        torch.testing.assert_close(alone["scores"][0], together["scores"][at])


def test_images_are_read_channel_by_channel():
    images = torch.arange(2 * 3 * 2 * 4, dtype=torch.uint8).view(2, 3, 2, 4)
    assert torch.equal(images_of(images.numpy().tobytes(), (3, 2, 4)), images)


def test_poses_are_little_endian_floats():
    poses = torch.randn(2, 1, 3, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(poses_of(poses.numpy().astype("<f4").tobytes(), (1, 3, 4)), poses)


@pytest.mark.parametrize("size", [0, 1, 63, 65, 64 * (MOST_ROWS + 1)])
def test_images_of_another_length(size):
    with pytest.raises(Refused, match=f"1 to {MOST_ROWS} times 64 bytes, got {size}"):
        images_of(bytes(size), (1, 8, 8))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_poses_that_are_no_numbers(value):
    poses = np.zeros((1, 1, 3, 4), "<f4")
    poses[0, 0, 1, 2] = value
    with pytest.raises(Refused, match="finite"):
        poses_of(poses.tobytes(), (1, 3, 4))


def test_a_message_rounds_to_bytes():
    message = as_message(torch.tensor([[[-1.0, 0.5, 2.0]]]))
    assert message == {"channels": 1, "height": 1, "width": 3, "data": "AID/"}
