"""A model takes images in [0, 1] or bytes and does the rest itself, wherever its weights go."""

import copy

import pytest
import torch

import capsroute as cr
from capsroute.models.preprocessing import Preprocessing, frame, with_polarity
from tests.models.inputs import IMAGES, inputs, settled, small

MEAN, DEVIATION = [0.4, 0.5, 0.6], [0.2, 0.3, 0.25]


def normalising(name="capsnet_small", **overrides):
    """A model with a mean and a deviation, and the same model without."""
    plain = settled(small(name, **overrides))
    model = copy.deepcopy(plain)
    channels = model.input_shape[0]
    names = [f"class {number}" for number in range(model.num_classes)]
    model.set_preprocessing(mean=MEAN[:channels], deviation=DEVIATION[:channels], classes=names)
    return model, plain


def by_hand(images):
    mean, deviation = (torch.tensor(values[: images.shape[1]])[:, None, None] for values in (MEAN, DEVIATION))
    return (images - mean) / deviation


@pytest.mark.parametrize("name", IMAGES)
def test_every_model_of_images_normalises_once(name):
    model, plain = normalising(name)
    images = inputs(model)
    assert torch.equal(model(images).scores, plain(by_hand(images)).scores)
    assert torch.equal(model.forward_features(images), plain.forward_features(by_hand(images)))


@pytest.mark.parametrize("name", IMAGES)
def test_bytes_are_scaled(name):
    model, _ = normalising(name)
    pixels = (inputs(model) * 255).round().to(torch.uint8)
    assert torch.equal(model(pixels).scores, model(pixels / 255).scores)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool])
def test_whole_numbers_that_are_no_bytes_are_named(dtype):
    model = cr.create_model("capsnet_small", image_size=8)
    with pytest.raises(ValueError, match=rf"images: expected \[0, 1\], or bytes as uint8, got {dtype}"):
        model(torch.ones(2, 1, 8, 8, dtype=dtype))


def test_bytes_go_into_half_precision_too():
    model, _ = normalising()
    pixels = (inputs(model) * 255).to(torch.uint8)
    assert model.bfloat16()(pixels).scores.dtype == torch.bfloat16


def test_a_fresh_model_changes_nothing_and_has_no_further_entries():
    model = small("capsnet_small")
    assert not any(name.startswith("preprocessing") for name in model.state_dict())
    images = inputs(model)
    assert model.preprocessing(images) is images


def test_saved_and_loaded_it_is_the_same(tmp_path):
    model, _ = normalising()
    model.set_preprocessing(resize="centre", crop=0.75, polarity="dark_on_light")
    cr.save_model(model, tmp_path)
    again = cr.load_model(tmp_path)
    assert again.preprocessing.record() == model.preprocessing.record()
    assert again.classes == ("class 0", "class 1", "class 2")
    assert torch.equal(again(inputs(model)).scores, model(inputs(model)).scores)


def test_a_state_dict_brings_it_along_and_one_without_leaves_it_alone():
    model, plain = normalising()
    images = inputs(model)
    fresh = small("capsnet_small").eval()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(images).scores, model(images).scores)
    model.load_state_dict(plain.state_dict())
    assert torch.equal(fresh(images).scores, model(images).scores)


@pytest.mark.parametrize("format", ["onnx", "pt2", "safetensors"])
def test_exported_it_goes_along(format, tmp_path):
    from capsroute.inference.exporting import _load

    model, plain = normalising()
    exported = cr.inference.export(model, tmp_path / f"model.{format}", format)
    images = inputs(model)
    found = _load(format, exported.path)(images)[0]
    torch.testing.assert_close(found, plain(by_hand(images)).scores, rtol=1e-4, atol=1e-5)
    assert exported.metadata["classes"] == ["class 0", "class 1", "class 2"]
    assert exported.metadata["preprocessing"]["mean"] == pytest.approx(MEAN[:1])


def test_folded_and_with_given_coefficients_it_goes_along():
    model, plain = normalising()
    images = inputs(model)
    for make in (cr.inference.fold, cr.inference.with_coefficients):
        made, other = make(model, "uniform"), make(plain, "uniform")
        assert torch.equal(made(images).scores, other(by_hand(images)).scores)
        assert made.classes == model.classes


def test_compiled_it_goes_along():
    torch.compiler.reset()
    model, _ = normalising()
    images = inputs(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(images).scores, model(images).scores, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"mean": [0.5]}, "mean: expected mean and deviation together"),
        ({"mean": [0.5] * 3, "deviation": [1.0] * 3}, "mean: expected 1 numbers, one a channel, got 3"),
        ({"mean": [0.5], "deviation": [0.0]}, "deviation: expected finite numbers > 0"),
        ({"mean": [float("nan")], "deviation": [1.0]}, "mean: expected finite numbers"),
        ({"classes": ["a", "b"]}, "classes: expected 3 names, got 2"),
        ({"resize": "squeeze"}, "resize: expected one of cover, centre, got 'squeeze'"),
        ({"polarity": "grey"}, "polarity: expected one of"),
        ({"crop": 0}, r"crop: expected a number in \(0, 1\], got 0"),
    ],
)
def test_what_cannot_be_is_refused(fields, says):
    with pytest.raises(ValueError, match=says):
        small("capsnet_small").set_preprocessing(**fields)


def test_packaged_weights_have_theirs():
    for weights in cr.models.pretrained_weights():
        model = cr.create_model(weights.model, pretrained=weights.tag)
        assert model.classes == weights.classes
        record = model.preprocessing.record()
        expected = weights.normalise or (None, None)
        assert record["mean"] == (expected[0] and pytest.approx(list(expected[0])))
        assert record["deviation"] == (expected[1] and pytest.approx(list(expected[1])))


def test_images_that_were_normalised_by_hand_are_warned_of():
    model, _ = normalising()
    with pytest.warns(UserWarning, match=r"images: expected \[0, 1\], for the model normalises them itself"):
        model(by_hand(inputs(model)))


def test_bytes_as_floats_are_warned_of_by_a_model_that_does_not_normalise():
    model = cr.create_model("capsnet_small", image_size=8).eval()
    with pytest.warns(UserWarning, match=r"images: expected \[0, 1\], or bytes as uint8, got 0 to 255"):
        model(torch.tensor([0.0, 255.0]).repeat(32).view(1, 1, 8, 8))


@pytest.mark.filterwarnings("error")
def test_images_in_0_1_are_not_warned_of():
    model, plain = normalising()
    model(inputs(model))
    model.train()(by_hand(inputs(model)))
    plain(by_hand(inputs(model)))


MNIST = Preprocessing(resize="centre", polarity="light_on_dark")


def paper(ground=1.0, ink=0.0, size=(60, 40)):
    """A vertical stroke, off the middle."""
    image = torch.full((1, *size), ground)
    image[:, 5:35, 4:8] = ink
    return image


def test_an_image_that_fits_is_not_touched():
    image = torch.zeros(1, 28, 28)
    image[:, 2:9, 3:5] = 0.7
    assert frame(image, (1, 28, 28), MNIST) is image


@pytest.mark.parametrize(("ground", "ink"), [(1.0, 0.0), (0.0, 1.0), (0.85, 0.2), (0.2, 0.9)])
def test_a_drawing_is_light_on_black_in_the_middle_whatever_the_paper(ground, ink):
    framed = frame(paper(ground, ink), (1, 28, 28), MNIST)
    drawn = (framed[0] > 0.5).nonzero()
    assert framed[0, 0].max() == 0
    assert abs(drawn.double().mean(0) - 13.5).max() <= 1
    assert drawn[:, 0].max() - drawn[:, 0].min() + 1 == 20


def test_colour_is_made_grey_and_grey_is_made_colour():
    assert frame(paper().expand(3, -1, -1), (1, 28, 28), MNIST).shape == (1, 28, 28)
    assert frame(paper(), (3, 16, 24), Preprocessing()).shape == (3, 16, 24)


def test_a_crop_sees_the_middle_of_what_covers_it():
    image = torch.zeros(3, 32, 32)
    image[:, 4:28, 4:28] = 1
    assert frame(image, (3, 24, 24), Preprocessing(crop=0.75)).min() == 1
    assert frame(image, (3, 32, 32), Preprocessing()).min() == 0


def test_polarity_goes_by_the_outermost_pixels():
    dark = torch.zeros(1, 8, 8)
    assert with_polarity(dark, "light_on_dark") is dark
    assert with_polarity(dark, "either") is dark
    assert torch.equal(with_polarity(dark, "dark_on_light"), 1 - dark)


def test_an_empty_sheet_is_black():
    assert frame(torch.ones(1, 50, 50), (1, 28, 28), MNIST).max() == 0
