"""What a run learns of its images stands in the model, and nobody does it twice."""

import pytest
import torch

import capsroute as cr
from capsroute.data import ImageSet
from capsroute.training import Splits, load_run, load_splits
from capsroute.training.image_statistics import look_of, record_preprocessing
from tests.training.tiny import tiny

PLAIN = {"data.normalise": "channels", "loss.reconstruction": 0.0, "data.augment": []}


def small(**overrides):
    torch.manual_seed(0)
    return cr.create_model("capsnet_small", image_size=8, **overrides)


def test_mean_and_deviation_are_those_of_the_training_images():
    recipe = tiny(**PLAIN)
    splits, model = load_splits(recipe), small()
    record_preprocessing(model, splits, recipe)
    seen = model.preprocessing(splits.train.images)
    assert abs(seen.mean()) < 1e-5
    assert abs(seen.std(correction=0) - 1) < 1e-5
    values = splits.train.images.double() / 255
    expected = (splits.test["digits"].images[0].double() / 255 - values.mean()) / values.std(correction=0)
    found = model.preprocessing(splits.test["digits"].images[:1])[0]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=0)
    assert model.classes == splits.train.classes


def test_a_run_keeps_them_and_its_model_takes_plain_images(tmp_path):
    images = torch.randint(0, 60, (64, 3, 8, 8), dtype=torch.uint8)
    labels = torch.arange(64) % 3
    images[labels == 1] += 100
    own = ImageSet(images, labels, ("circle", "square", "triangle"))
    recipe = {**tiny(**PLAIN).plain(), "data": {"normalise": "channels"}}
    splits = Splits(own, test={"own": own})
    run = cr.training.fit(
        small(in_channels=3, num_classes=3), splits, recipe, tmp_path, reporter=cr.training.SilentReporter()
    )
    _, model = load_run(tmp_path)
    assert model.classes == ("circle", "square", "triangle")
    assert torch.equal(model.preprocessing.mean, run.model.preprocessing.mean)
    found = (model(images).scores.argmax(1) == labels).double().mean().item()
    assert found == pytest.approx(run.accuracy)
    assert torch.equal(model(images).scores, model(images / 255).scores)


def test_a_decoder_draws_the_images_as_they_were_before_they_were_normalised(tmp_path, monkeypatch):
    shown, error = [], cr.losses.reconstruction

    def watch(drawn, images, **options):
        shown.append(images)
        return error(drawn, images, **options)

    monkeypatch.setattr(cr.losses, "reconstruction", watch)
    recipe = tiny(**{**PLAIN, "loss.reconstruction": 0.0005, "data.augment": [], "training.epochs": 1})
    run = cr.training.fit(None, None, recipe, tmp_path, reporter=cr.training.SilentReporter())
    assert run.model.preprocessing.mean is not None
    plain = {image.numpy().tobytes() for image in cr.data.load("digits").images}
    seen = {image.numpy().tobytes() for image in (torch.cat(shown) * 255).round().to(torch.uint8)}
    assert seen <= plain
    assert len(seen) > 1000


def test_weights_that_bring_their_own_keep_them_unless_the_recipe_measures_anew():
    model, recipe = small(), tiny(**{**PLAIN, "data.normalise": "none"})
    model.set_preprocessing(mean=[0.5], deviation=[0.25])
    record_preprocessing(model, load_splits(recipe), recipe)
    assert model.preprocessing.mean.item() == 0.5
    record_preprocessing(model, load_splits(recipe), tiny(**PLAIN))
    assert model.preprocessing.mean.item() != 0.5


def test_a_model_that_cannot_is_refused():
    with pytest.raises(ValueError, match=r"data\.normalise: the model has no `preprocessing`"):
        record_preprocessing(torch.nn.Linear(2, 2), load_splits(tiny(**PLAIN)), tiny(**PLAIN))


def test_a_run_of_a_version_that_kept_no_mean_is_measured_again(tmp_path):
    recipe = tiny(**PLAIN, **{"training.max_steps": 1, "evaluation.pictures": False})
    cr.training.fit(None, None, recipe, tmp_path, reporter=cr.training.SilentReporter())
    _, new = load_run(tmp_path)
    old = cr.load_model(tmp_path / "best")
    old.preprocessing = cr.models.Preprocessing()
    cr.save_model(old, tmp_path / "best")
    assert torch.equal(load_run(tmp_path)[1].preprocessing.mean, new.preprocessing.mean)


class TestLook:
    def drawn(self, offset=4, box=20):
        pixels = torch.zeros(40, 1, 28, 28, dtype=torch.uint8)
        pixels[:, :, offset : offset + box, 10:18] = 200
        return pixels

    def test_light_on_dark_in_the_box_of_mnist(self):
        assert look_of(self.drawn()) == {"polarity": "light_on_dark", "resize": "centre"}

    def test_off_centre_or_in_another_box_it_is_only_light_on_dark(self):
        for offset, box in ((7, 20), (8, 12)):
            assert look_of(self.drawn(offset, box)) == {"polarity": "light_on_dark"}

    def test_dark_on_light(self):
        assert look_of(255 - self.drawn()) == {"polarity": "dark_on_light"}

    def test_photographs_have_neither(self):
        assert look_of(torch.randint(0, 256, (40, 1, 28, 28), dtype=torch.uint8)) == {}
        assert look_of(self.drawn().expand(-1, 3, -1, -1)) == {}
