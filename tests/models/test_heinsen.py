"""Heinsen's network for stereo images."""

import pytest
import torch

import capsroute as cr
from tests.layers.filled import ROUTINGS
from tests.models.inputs import inputs, settled, small


def test_it_takes_images_of_other_sizes_than_it_was_made_for():
    model = settled(small("heinsen_smallnorb"))
    for size in [(31, 31), (29, 64), (40, 33)]:
        output = model(torch.rand(2, 2, *size), return_coefficients=True)
        assert output.scores.shape == (2, 3)
        assert output.coefficients["capsules.layers.1"].shape == (2, 6, 3)
    with pytest.raises(ValueError, match=r"images: expected \[b,2,h,w\] with h and w at least 29"):
        model(torch.rand(2, 2, 28, 40))


def test_the_map_of_96_pixels_is_9_by_9():
    model = cr.create_model("heinsen_smallnorb").eval()
    output = model(torch.rand(1, 2, 96, 96), return_coefficients=True)
    assert output.coefficients["capsules.layers.0"].shape == (1, 64 * 9 * 9, 64)
    assert output.poses.shape == (1, 5, 4, 4)


def test_coordinates_are_rows_and_then_columns_beside_the_image():
    model = settled(small("heinsen_smallnorb"))
    seen = {}
    model.convolutions.register_forward_pre_hook(lambda module, given: seen.update(x=given[0]))
    images = torch.rand(2, 2, 31, 35)
    model(images)
    x = seen["x"]
    assert torch.equal(x[:, :2], images)
    assert x[:, 2, 0].eq(-1).all()
    assert x[:, 2, -1].eq(1).all()
    assert x[:, 3, :, 0].eq(-1).all()
    assert x[:, 3, :, -1].eq(1).all()
    torch.testing.assert_close(x[0, 2, :, 5], torch.linspace(-1, 1, 31))


def test_poses_and_positions_do_not_mix():
    model = settled(small("heinsen_smallnorb", image_size=45))
    images = inputs(model, batch=1)
    features = model.convolutions(torch.cat([images, coordinates(45)], 1))
    poses, scores = model.poses(features)[0], model.scores(features)[0]  # [n*a*k, h, w], [n, h, w]
    children, logits = [], []
    for n in range(6):
        for y in range(features.shape[2]):
            for x in range(features.shape[3]):
                children.append(poses[n * 6 : n * 6 + 6, y, x].view(2, 3))
                logits.append(scores[n, y, x])
    routed = model.capsules(torch.stack(children)[None], torch.stack(logits)[None])
    torch.testing.assert_close(model(images).scores, routed.scores, rtol=1e-4, atol=1e-5)


def coordinates(size):
    steps = torch.linspace(-1, 1, size)
    return torch.stack([steps[:, None].expand(size, size), steps[None].expand(size, size)])[None]


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_but_one_runs(routing):
    if routing == "fast":
        with pytest.raises(ValueError, match="the number of children must be fixed"):
            small("heinsen_smallnorb", routing=routing)
        return
    model = small("heinsen_smallnorb", routing=routing)
    output = model(inputs(model))
    assert output.scores.isfinite().all()
    assert (model.scores is None) == (model.capsules.layers[0].routing.score_kind is None)


def test_fresh_it_is_that_of_the_paper():
    torch.manual_seed(0)
    model = cr.create_model("heinsen_smallnorb")
    assert [layer.stride[0] for layer in model.convolutions[1::3]] == [1, 2, 1, 2, 1, 2]
    weight = model.convolutions[4].weight
    assert weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert model.convolutions[4].bias.abs().max() == 0
    assert model.capsules.layers[0].W.std().item() == pytest.approx(1 / 4, rel=0.05)


def test_the_cnn_to_compare_with_is_as_large_and_sees_the_same():
    routed, plain = (cr.models.summarise(name).parameters for name in ("heinsen_smallnorb", "heinsen_smallnorb_cnn"))
    assert abs(plain / routed - 1) < 0.002
    torch.manual_seed(0)
    model = cr.create_model("heinsen_smallnorb_cnn", image_size=40, channels=8).eval()
    image = torch.zeros(1, 2, 40, 40)
    image[:, :, 5:9, 5:9] = 1.0
    # Coordinates stand beside the pixels: average pooling alone could not tell where the square is.
    assert not torch.allclose(model(image).scores, model(image.roll((16, 16), (2, 3))).scores, atol=1e-4)
    with pytest.raises(ValueError, match="at least"):
        model(torch.zeros(1, 2, 8, 8))
