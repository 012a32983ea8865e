"""Images of one's own in recipes: what is decided and written down, from one process and from two, and from Python."""

import pytest
import torch

from capsroute.data import DataError, DataWarning, from_path
from capsroute.data.images import listing
from capsroute.data.images.path import list_images
from capsroute.data.images.shards import pack
from capsroute.training import RunFolder, SilentReporter, Splits, fit, load_recipe, load_splits
from capsroute.training.own_images import load_others, train_on
from tests.data.images.shapes import CLASSES, make_shapes
from tests.training.processes import far_apart, train_together, weights
from tests.training.tiny import tiny, train


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("own") / "shapes", 14)


def own(path, **options):
    """Changes to the tiny recipe: these images in place of its digits."""
    augment = [{"name": "shift", "pixels": 1}]
    return {
        "data": {"path": str(path), "image_size": 12, "channels": 3, "augment": augment, **options},
        "training.batch_size": 10,
        "training.epochs": 2,
    }


def test_two_processes_with_shards_equal_one_with_the_folder_in_memory(shapes, tmp_path):
    pack(list_images(shapes), tmp_path / "shapes", per_shard=15)
    streamed = own(tmp_path / "shapes-{0000..0002}.tar", store="stream", workers=0)
    train_together(tmp_path / "two", streamed)
    train(tmp_path / "one", **own(tmp_path / "shapes-*.tar"), **{"training.accumulate": 2})
    assert far_apart(weights(tmp_path / "two"), weights(tmp_path / "one")) == 0
    two, one = (RunFolder(tmp_path / name).read("result.json") for name in ("two", "one"))
    assert two["test"]["as_trained"]["accuracy"] == one["test"]["as_trained"]["accuracy"]


def test_a_stream_resumes_bit_for_bit(shapes, tmp_path):
    changes = {**own(shapes, store="stream", workers=1), "checkpoint.every_steps": 4}
    whole = train(tmp_path / "whole", **changes)
    assert whole.result["steps"] == 6
    for newest in (tmp_path / "whole" / "checkpoints").glob("step-*6.*"):
        newest.unlink()
    before = weights(tmp_path / "whole")
    (tmp_path / "whole" / "result.json").unlink()
    train(tmp_path / "whole", resume=True, **changes)
    assert far_apart(before, weights(tmp_path / "whole")) == 0


def test_size_classes_and_channels_come_from_the_images(shapes):
    recipe, said = train_on(load_recipe("images"), shapes)
    assert recipe.data.classes == list(CLASSES)
    assert recipe.data.channels == 3
    assert recipe.data.image_size == [26, 26]  # the median of their shorter sides
    assert "several sizes, scaled and cut to 26 x 26" in said
    assert recipe.name == "images-shapes"
    asked, _ = train_on(load_recipe("images", ["data.image_size=20", "model.arguments.in_channels=1"]), shapes)
    assert asked.data.image_size == [20, 20]
    assert asked.data.channels == 1


def test_a_recipe_of_a_paper_keeps_its_size_and_loses_its_published_number(shapes):
    recipe, _ = train_on(load_recipe("sabour-mnist", ["data.split_seed=7"]), shapes)
    assert recipe.data.image_size == [28, 28]
    assert recipe.paper is None
    assert recipe.data.name is None
    assert recipe.data.split_seed == 7
    assert recipe.data.augment == load_recipe("sabour-mnist").data.augment


@pytest.mark.parametrize("name", ["heinsen-sst5", "sabour-multimnist"])
def test_recipes_that_have_no_place_for_images(shapes, name):
    with pytest.raises(ValueError, match=r"--data: the recipe .* expected one that trains on images of a data set"):
        train_on(load_recipe(name), shapes)


def test_images_that_moved_or_changed_their_classes(shapes, tmp_path):
    recipe = tiny(**own(tmp_path / "gone"))
    with pytest.raises(DataError, match=r"gone' is not there any more; --data PATH says where the images are now"):
        load_splits(recipe)
    recipe = tiny(**own(shapes, classes=["cat", "dog"]))
    with pytest.raises(DataError, match="expected the classes cat, dog that the run was begun with, found großes"):
        load_splits(recipe)


def test_images_that_were_added_are_cut_anew_and_a_run_says_so(tmp_path):
    folder = make_shapes(tmp_path / "shapes", 14)
    run = train(tmp_path / "run", **own(folder), **{"checkpoint.every_steps": 2, "training.max_steps": 3})
    recipe = RunFolder(run.folder).recipe()
    more = make_shapes(tmp_path / "more", 60, seed=1)
    for picture in more.glob("*/*"):
        picture.rename(folder / picture.parent.name / f"more {picture.name}")
    with pytest.warns(UserWarning, match="images were added or taken away since the run began"):
        load_splits(recipe)
    (run.folder / "result.json").unlink()
    with (
        pytest.warns(UserWarning, match="added"),
        pytest.raises(DataError, match="a run cannot be gone on with on other images"),
    ):
        fit(None, None, recipe, run.folder, resume=True, reporter=SilentReporter())


def test_a_run_lists_its_images_once(shapes, tmp_path, monkeypatch):
    asked, read = [], listing.pictures_below
    monkeypatch.setattr(
        listing, "pictures_below", lambda folder, *inside: asked.append(folder.name) or read(folder, *inside)
    )
    run = train(tmp_path, **own(shapes), **{"training.max_steps": 1})
    assert sorted(asked) == sorted(CLASSES)  # no folder twice: of a million files each time takes seconds
    asked.clear()
    load_splits(RunFolder(run.folder).recipe())
    assert sorted(asked) == sorted(CLASSES)


def test_other_images_to_measure_on_are_whole_or_a_split(tmp_path):
    folder = make_shapes(tmp_path / "shapes", 4)
    next((folder / "kreis").iterdir()).write_bytes(b"")
    classes = ("another", *reversed(CLASSES))
    with pytest.warns(DataWarning, match="1 of 12 pictures are left out"):
        found = load_others(folder, "test", (3, 8, 8), classes)
    assert found.images.shape == (11, 3, 8, 8)
    assert found.labels.bincount().tolist() == [0, 4, 3, 4]  # the classes of the network, by name
    folder.rename(tmp_path / "train")
    with pytest.raises(DataError, match="expected images to test on, found none"):
        load_others(tmp_path, "test", (3, 8, 8), classes)


def test_strict_is_kept_in_the_recipe(tmp_path):
    folder = make_shapes(tmp_path / "shapes", 4)
    next((folder / "kreis").iterdir()).write_bytes(b"")
    recipe, _ = train_on(tiny(), folder, strict=True)
    with pytest.raises(DataError, match="expected a picture"):
        load_splits(recipe)
    with pytest.warns(DataWarning, match="1 of 12 pictures are left out"):
        load_splits(train_on(tiny(), folder)[0])


def test_what_was_given_in_python_is_written_down_as_far_as_it_is_known(shapes, tmp_path):
    sets = from_path(shapes, (12, 12))
    splits = Splits(sets["train"], sets["validation"], {"shapes": sets["test"]})
    train(tmp_path, splits=splits, **{"data": {}, "training.epochs": 1, "training.batch_size": 10})
    recipe = RunFolder(tmp_path).recipe()
    assert recipe.data.classes == list(CLASSES)
    assert recipe.data.image_size == [12, 12]
    with pytest.raises(ValueError, match="images were given in Python; --data PATH names them"):
        load_splits(recipe)
    found = load_splits(RunFolder(tmp_path).recipe([f'data.path="{shapes}"']))
    assert torch.equal(found.test["shapes"].images, sets["test"].images)


def test_channels_are_measured_alike_in_memory_and_from_a_stream(shapes):
    kept, streamed = (load_splits(tiny(**own(shapes, store=store, workers=0))) for store in ("memory", "stream"))
    assert kept.channels == streamed.channels
    pixels = kept.train.images.double() / 255
    assert torch.tensor(kept.channels[0]).allclose(pixels.mean((0, 2, 3)).float(), atol=1e-6)
