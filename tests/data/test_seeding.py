import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.data.seeding import generator_at, splitmix64
from capsroute.data.sets import stratified_cut


def _draw(*place):
    return torch.rand(4, generator=generator_at(*place)).tolist()


def test_same_place_same_numbers():
    assert _draw(1, "augment", 2, 3) == _draw(1, "augment", 2, 3)


def test_every_part_of_the_place_matters():
    places = [(1, "augment", 2, 3), (2, "augment", 2, 3), (1, "order", 2, 3), (1, "augment", 3, 2), (1, "augment", 23)]
    assert len({tuple(_draw(*place)) for place in places}) == len(places)


def test_the_hash_never_changes():
    # Written down on the day it was made: published numbers depend on which images are held out.
    assert splitmix64(np.arange(2, dtype=np.uint64), 0).tolist() == [16294208416658607535, 10451216379200822465]


def test_equal_whole_numbers_are_equal_seeds_and_others_are_none():
    assert _draw(np.int64(3)) == _draw(torch.tensor(3)) == _draw(3)
    for seed in (None, float("nan"), 1.5, [1], "1", True):
        with pytest.raises(ValueError, match="seed: expected a whole number, got "):
            generator_at(seed)
        with pytest.raises(ValueError, match="seed: expected a whole number, got "):
            cr.data.Batches(cr.data.load("digits"), 100, seed=seed)
        with pytest.raises(ValueError, match="seed: expected a whole number, got "):
            stratified_cut(torch.arange(6) % 2, 2, seed)
