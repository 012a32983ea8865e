"""Images of any kind and size in, names with probabilities out."""

import numpy as np
import pytest
import torch
from PIL import Image

import capsroute as cr
from capsroute.data import DataError
from capsroute.data.errors import DataWarning
from capsroute.data.images.listing import list_folder
from capsroute.prediction import open_classifier


@pytest.fixture
def model():
    torch.manual_seed(0)
    made = cr.create_model("capsnet_small", in_channels=3, image_size=(8, 12), num_classes=3, decoder=None)
    made.set_preprocessing(mean=[0.4] * 3, deviation=[0.2] * 3, classes=["circle", "square", "triangle"])
    return made.eval()


@pytest.fixture(scope="module")
def mnist():
    return cr.create_model("capsnet_max_min", pretrained=True)


def seven(size=(90, 70)):
    """A seven as one writes it: black on white, off the middle."""
    from PIL import ImageDraw

    sheet = Image.new("L", size, 255)
    ImageDraw.Draw(sheet).line([(12, 14), (44, 14), (24, 66)], fill=0, width=6)
    return sheet


def picture(**options):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    return Image.fromarray(pixels, **options)


def scores(model, image):
    return model(image[None]).scores[0].softmax(0) if model.score_kind == "logit" else model(image[None]).scores[0]


def test_a_tensor_of_the_right_size_is_what_the_model_sees(model):
    image = torch.rand(3, 8, 12)
    [found] = cr.predict(model, image, top=3)
    values, places = scores(model, image).topk(3)
    assert found.classes == tuple(model.classes[place] for place in places)
    assert found.probabilities == pytest.approx(values.tolist())
    assert (found.label, found.probability) == (found.classes[0], found.probabilities[0])


def test_one_picture_in_every_form_gives_one_answer(model, tmp_path):
    image = picture()
    image.save(tmp_path / "a b ü.png")
    pixels = np.asarray(image)
    forms = [
        tmp_path / "a b ü.png",
        str(tmp_path / "a b ü.png"),
        image,
        pixels,
        pixels.astype(np.uint16) * 257,
        pixels / 255,
        torch.from_numpy(pixels.copy()).movedim(2, 0),
        torch.from_numpy(pixels.copy()).movedim(2, 0) / 255,
    ]
    found = cr.predict(model, forms, top=None)
    for other in found[1:]:
        assert other.classes == found[0].classes
        assert other.probabilities == pytest.approx(found[0].probabilities, abs=1e-6)
    assert [one.source for one in found[2:]] == [str(number) for number in range(2, 8)]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "I", "F"])
def test_every_mode_of_pillow_is_taken(model, mode):
    image = picture().convert("L").convert("F") if mode == "F" else picture().convert(mode)
    if mode == "F":
        image = Image.fromarray(np.asarray(image) / 255)
    assert cr.predict(model, image)[0].label in model.classes


@pytest.mark.parametrize("as_array", [np.asarray, lambda image: np.asarray(image) / 255])
def test_what_is_transparent_in_an_array_is_white_as_in_a_picture(model, as_array):
    image = picture().convert("RGBA")
    image.putalpha(Image.linear_gradient("L").resize(image.size))
    drawn, array = cr.predict(model, [image, as_array(image)], top=None)
    assert array.classes == drawn.classes
    assert array.probabilities == pytest.approx(drawn.probabilities, abs=2e-3)  # Pillow rounds to bytes in between


def test_numbers_that_are_no_pixels_are_said(model):
    with pytest.raises(DataError, match=r"0: expected bytes \(uint8\), .*, found int64"):
        cr.predict(model, torch.zeros(3, 8, 12, dtype=torch.int64), strict=True)
    with pytest.raises(DataError, match=r"0: expected .* floats in \[0, 1\], found -1.0 to 2.5"):
        cr.predict(model, torch.tensor([-1.0, 2.5]).repeat(3, 8, 6), strict=True)
    with pytest.raises(DataError, match="0: expected a picture, an array or a tensor of numbers, found one of bool"):
        cr.predict(model, torch.ones(3, 8, 12, dtype=torch.bool), strict=True)
    for shape in ((3, 0, 12), (3, 8, 0)):
        with pytest.raises(DataError, match=rf"0: expected at least one pixel, found shape \({shape[0]}, {shape[1]}, "):
            cr.predict(model, torch.ones(shape), strict=True)


def test_a_batch_of_arrays_is_as_many_answers(model):
    images = torch.rand(5, 3, 8, 12)
    assert [one.source for one in cr.predict(model, images, batch_size=2)] == list("01234")
    assert [one.source for one in cr.predict(model, [images, images[0]])] == ["0.0", "0.1", "0.2", "0.3", "0.4", "1"]


def test_a_folder_is_gone_through_by_name(model, tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("b.png", "a.png", "in/c.jpg"):
        picture().save(tmp_path / name)
    found = cr.predict(model, tmp_path)
    assert [one.source for one in found] == [str(tmp_path / name) for name in ("a.png", "b.png", "in/c.jpg")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected pictures"):
        cr.predict(model, tmp_path / "empty")


def test_a_folder_is_read_as_it_is_for_training(model, tmp_path):
    for name in ("classes/a/1.png", "classes/a/._1.png", "classes/b/.thumbnails/2.png", "elsewhere/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        picture().save(tmp_path / name)
    (tmp_path / "classes" / "b" / "linked").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    found = [one.source for one in cr.predict(model, tmp_path / "classes")]
    assert found == [str(tmp_path / "classes" / name) for name in list_folder(tmp_path / "classes").files]
    assert found == [str(tmp_path / "classes" / name) for name in ("a/1.png", "b/linked/3.png")]


def test_one_bad_file_is_left_out_with_a_count_or_stops(model, tmp_path):
    picture().save(tmp_path / "good.png")
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.warns(DataWarning, match=r"1 of 2 images left out: .*bad\.png"):
        bad, good = cr.predict(model, tmp_path)
    assert "bad.png" in bad.problem
    assert (bad.label, bad.probability) == (None, None)
    assert good.label in model.classes
    with pytest.raises(DataError, match=r"bad\.png"):
        cr.predict(model, tmp_path, strict=True)


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 5, 6, 7, 8)),
        np.zeros((7, 5, 9)),
        np.full((4, 4), 2.0),
        torch.zeros(4, 4, dtype=torch.int64),
        "x" * 9,
    ],
)
def test_what_is_no_image_is_said(model, image):
    with pytest.raises(DataError, match="expected"):
        cr.predict(model, [image], strict=True)


def test_black_on_white_is_read_like_white_on_black(mnist):
    sheet = seven()
    inverted = Image.eval(sheet, lambda level: 255 - level)
    for image in (sheet, inverted, sheet.convert("RGB"), seven((300, 200)), sheet.convert("L").resize((28, 28))):
        assert cr.predict(mnist, image)[0].label == "7"


def test_bundled_digits_are_read_as_they_are(mnist):
    from pathlib import Path

    import capsroute.explorer

    with np.load(Path(capsroute.explorer.__file__).parent / "samples" / "mnist.npz") as stored:
        images, labels = torch.from_numpy(stored["images"]), stored["labels"]
    found = cr.predict(mnist, images)
    assert [one.label for one in found] == [str(label) for label in labels]


@pytest.mark.parametrize("format", ["onnx", "pt2", "safetensors"])
def test_an_exported_file_agrees_with_the_model(model, format, tmp_path):
    cr.inference.export(model, tmp_path / f"model.{format}", format)
    images = [picture(), torch.rand(3, 8, 12), np.zeros((5, 5), np.uint8)]
    ours, theirs = (cr.predict(source, images, top=None) for source in (model, tmp_path / f"model.{format}"))
    for one, other in zip(ours, theirs):
        assert one.classes == other.classes
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-5)


def test_several_classes_at_once_have_probabilities_of_their_own():
    torch.manual_seed(0)
    options = cr.models.small_options("tsai_multimnist_matrix")
    model = cr.create_model("tsai_multimnist_matrix", **options).eval()
    classifier = open_classifier(model)
    image = torch.rand(2, *model.input_shape)
    torch.testing.assert_close(classifier.probabilities(image), model(image).scores.sigmoid())


def test_it_leaves_the_model_in_its_mode(model):
    model.train()
    cr.predict(model, torch.rand(3, 8, 12))
    assert model.training


def test_a_model_without_images_is_refused():
    with pytest.raises(ValueError, match="model: expected a model of images, got Linear; one of your own needs"):
        cr.predict(torch.nn.Linear(2, 2), torch.rand(3, 8, 8))
    with pytest.raises(ValueError, match="model: expected a model of images, got MeanPooledText"):
        cr.predict(cr.models.MeanPooledText(3, 8, 2), torch.rand(3, 8, 8))
    own = torch.nn.Flatten()
    own.input_shape, own.preprocessing = (3, 8, 8), cr.models.Preprocessing()
    with pytest.raises(ValueError, match="model: expected one that knows its classes"):
        cr.predict(own, torch.rand(3, 8, 8))


def test_a_damaged_file_is_one_error_that_names_it(tmp_path):
    for name in ("model.onnx", "model.pt2"):
        (tmp_path / name).write_bytes(b"nothing")
        with pytest.raises(ValueError, match=f"{name}: expected a file that `capsroute export` wrote"):
            cr.predict(tmp_path / name, torch.rand(3, 8, 8))
