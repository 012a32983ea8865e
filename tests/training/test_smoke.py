"""Trying a recipe on generated data."""

import torch

from capsroute.data import dataset_info
from capsroute.training import load_recipe
from capsroute.training.smoke import smoke_recipe, smoke_splits


def test_data_have_the_shape_and_the_classes_of_the_real_set():
    splits = smoke_splits(load_recipe("tsai-cifar100-resnet18"))
    info = dataset_info("cifar100")
    assert splits.train.shape == info.shape
    assert splits.train.labels.unique().tolist() == list(range(100))


def test_pictures_drawn_anew_start_from_digits():
    splits = smoke_splits(load_recipe("sabour-multimnist"))
    assert splits.train.shape == (1, 28, 28)
    assert splits.test["multimnist"].shape == (1, 36, 36)
    assert splits.test["multimnist"].labels.shape[1] == 2


def test_nothing_but_length_and_speed_is_changed():
    recipe = load_recipe("tsai-cifar10-resnet-inverted")
    short = smoke_recipe(recipe)
    assert short.model == recipe.model
    assert (short.loss, short.optimiser, short.schedule) == (recipe.loss, recipe.optimiser, recipe.schedule)
    assert short.training.max_steps == 2
    if not torch.cuda.is_available():
        assert short.training.precision == "fp32"
