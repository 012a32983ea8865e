"""From `[data]` to batches; batches made by another thread are the same, and what was not taken was not seen."""

import threading

import pytest
import torch

import capsroute as cr
from capsroute.data import ImageSet, load
from capsroute.training import RecipeError, Splits, load_splits
from capsroute.training import data as sources
from capsroute.training.data import (
    Prefetched,
    centre_crop,
    made_ahead,
    model_arguments,
    plain_batches,
    training_batches,
)
from capsroute.training.smoke import smoke_splits
from tests.training.tiny import tiny

CPU = torch.device("cpu")
PLAIN = {"loss.reconstruction": 0.0}


def test_validation_is_cut_from_training_data_and_test_is_apart():
    splits = load_splits(tiny())
    assert (len(splits.train), len(splits.validation), len(splits.test["digits"])) == (1295, 143, 359)


def test_without_validation_its_images_are_trained_on():
    splits = load_splits(tiny(**{"data.validation": False}))
    assert len(splits.train) == 1438
    assert splits.validation is None


def test_evaluation_is_in_order_and_never_augmented():
    splits, recipe = load_splits(tiny()), tiny()
    images, labels = next(iter(plain_batches(splits.test["digits"], recipe, CPU)))
    test = load("digits", "test")
    assert torch.equal(labels, test.labels)
    assert torch.equal(images, test.images / 255)


def test_training_is_augmented_and_shuffled():
    splits, recipe = load_splits(tiny()), tiny()
    _, labels = next(iter(training_batches(splits, recipe, CPU)))
    assert not torch.equal(labels, splits.train.labels[:200])
    assert repr(training_batches(splits, recipe, CPU).augment) == "Shift(pixels=1)"


def test_batches_are_in_0_1_whatever_the_recipe_normalises():
    """The model takes off mean and deviation; batches that did so too would do it twice."""
    recipe = tiny(**PLAIN, **{"data.normalise": "channels", "data.augment": []})
    splits = load_splits(recipe)
    for batches in (plain_batches(splits.train, recipe, CPU), training_batches(splits, recipe, CPU)):
        images = torch.cat([images for images, _ in batches])
        assert (images.min(), images.max()) == (0, 1)


def test_centre_crop_takes_the_middle():
    pixels = torch.arange(25, dtype=torch.uint8).view(1, 1, 5, 5)
    images = ImageSet(pixels, torch.tensor([0]), ("a",))
    assert centre_crop(images, 3).images.flatten().tolist() == [6, 7, 8, 11, 12, 13, 16, 17, 18]
    with pytest.raises(ValueError, match="test_crop: expected at most 5, got 6"):
        centre_crop(images, 6)


def test_sizes_of_the_model_follow_from_the_data():
    recipe = tiny(**{"model.arguments": {"num_classes": 12}})
    assert model_arguments(load_splits(recipe), recipe) == {"in_channels": 1, "image_size": 8, "num_classes": 12}
    cropped = tiny(**{"data.test_crop": 6, "model.arguments": {}})
    assert model_arguments(load_splits(cropped), cropped)["image_size"] == 6


def test_fresh_pictures_are_drawn_anew_every_epoch():
    recipe = tiny(**{"data": {"name": "multimnist", "fresh": True, "parts": True}, "training.batch_size": 8})
    splits = smoke_splits(recipe)
    batches = training_batches(splits, recipe, CPU)
    first, labels, parts = next(iter(batches))
    batches.set_epoch(1)
    second = next(iter(batches))[0]
    assert first.shape == (8, 1, 36, 36)
    assert labels.shape == (8, 2)
    assert parts.shape == (8, 2, 36, 36)
    assert not torch.equal(first, second)
    assert model_arguments(splits, recipe)["image_size"] == 36


def test_recipe_without_data_needs_some():
    with pytest.raises(ValueError, match=r"the recipe names no data set.*--data"):
        load_splits(tiny(**{"data": {}}))


def test_sentences_need_an_encoder():
    with pytest.raises(RecipeError, match="'sst' are sentences"):
        tiny(**{"data": {"name": "sst"}})


def test_small_set_is_one_batch():
    splits = load_splits(tiny())
    few = Splits(splits.train.subset(torch.arange(50)))
    assert len(training_batches(few, tiny(), CPU)) == 1


def test_toys_are_rendered_on_the_gpu_and_kept_on_the_host(monkeypatch):
    asked = {}

    def record(name, split, **options):
        asked[name] = options
        return load("digits", split)

    monkeypatch.setattr(sources, "load", record)
    monkeypatch.setattr(ImageSet, "to", lambda images, device: (images, device))
    assert sources._load(torch.device("cuda"), "toynorb", "test", {"size": 8})[1] == "cpu"
    sources._load(torch.device("cpu"), "toynorb_low", "test", {})
    sources._load(torch.device("cuda"), "rotated_mnist", "test", {"count": 3})
    cuda = torch.device("cuda")
    assert asked == {"toynorb": {"device": cuda, "size": 8}, "toynorb_low": {}, "rotated_mnist": {"count": 3}}


def source(seed=3):
    return cr.data.Batches(cr.data.load("digits"), 100, augment=cr.data.augment.Shift(1), seed=seed)


def test_pictures_are_made_ahead_on_a_gpu_alone(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    plain = source()
    assert made_ahead(plain, CPU) is plain
    assert isinstance(made_ahead(plain, torch.device("cuda")), Prefetched)


def test_two_epochs_are_those_of_the_source():
    ahead, plain = Prefetched(source(), CPU), source()
    for epoch in range(2):
        ahead.set_epoch(epoch)
        plain.set_epoch(epoch)
        for (images, labels), (others, other_labels) in zip(ahead, plain, strict=True):
            assert torch.equal(images, others)
            assert torch.equal(labels, other_labels)


@pytest.mark.parametrize("taken", [1, 5, 13])
def test_state_is_that_of_what_was_taken(taken):
    """Several batches wait already: resuming must not skip them."""
    ahead, plain = Prefetched(source(), CPU), source()
    one, other = iter(ahead), iter(plain)
    for _ in range(taken):
        next(one), next(other)
    assert ahead.state_dict() == plain.state_dict()
    one.close()
    again = Prefetched(source(), CPU)
    again.load_state_dict(ahead.state_dict())
    again.set_epoch(0)
    rest, expected = list(again), list(other)
    assert len(rest) == len(expected) == 13 - taken
    assert all(torch.equal(a[0], b[0]) for a, b in zip(rest, expected, strict=True))


def test_loop_that_is_left_leaves_no_thread():
    before = threading.active_count()
    for _ in Prefetched(source(), CPU):
        break
    assert threading.active_count() == before


def test_error_of_the_thread_is_raised_here():
    broken = source()
    broken.augment = lambda images, labels, generator: 1 / 0
    with pytest.raises(ZeroDivisionError):
        list(Prefetched(broken, CPU))
