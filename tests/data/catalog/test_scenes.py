"""Scenes: what is on them, whose each pixel is, and that seeds and devices decide all of it."""

import pytest
import torch

import capsroute as cr
from capsroute.data.catalog import scenes


def edges_shared(masks: torch.Tensor) -> int:
    """How many neighbouring pixels belong to different objects, the ground not counted."""
    across = (masks[:, 1:] != masks[:, :-1]) & (masks[:, 1:] > 0) & (masks[:, :-1] > 0)
    along = (masks[:, :, 1:] != masks[:, :, :-1]) & (masks[:, :, 1:] > 0) & (masks[:, :, :-1] > 0)
    return int(across.sum() + along.sum())


def test_tetrominoes_are_three_whole_pieces_that_do_not_touch():
    drawn = scenes.tetrominoes_like(200, seed=3)
    masks = drawn.metadata["masks"]
    assert drawn.images.shape == (200, 3, 35, 35)
    for piece in (1, 2, 3):
        assert ((masks == piece).flatten(1).sum(1) == 4 * 25).all()
    assert edges_shared(masks) == 0


def test_tetrominoes_are_of_one_colour_each_on_black():
    drawn = scenes.tetrominoes_like(50)
    images, masks = drawn.images.permute(0, 2, 3, 1), drawn.metadata["masks"]
    assert (images[masks == 0] == 0).all()
    for sample in range(50):
        for piece in (1, 2, 3):
            colours = images[sample][masks[sample] == piece].unique(dim=0).tolist()
            assert len(colours) == 1
            assert tuple(colours[0]) in scenes.TETROMINO_COLOURS


def test_there_are_nineteen_tetrominoes_and_all_of_them_are_drawn():
    boards = scenes._placements().unflatten(1, (7, 7))
    corners = {tuple(map(tuple, (board.nonzero() - board.nonzero().amin(0)).tolist())) for board in boards}
    assert len(corners) == 19
    masks = scenes.tetrominoes_like(600, cell=1).metadata["masks"]
    seen = set()
    for mask in masks:
        for piece in (1, 2, 3):
            cells = (mask == piece).nonzero()
            seen.add(tuple(map(tuple, (cells - cells.amin(0)).tolist())))
    assert seen == corners


def test_the_size_of_a_cell_changes_nothing_else():
    small, large = (scenes.tetrominoes_like(20, cell=cell) for cell in (1, 5))
    assert torch.equal(small.images, large.images[:, :, 2::5, 2::5])
    assert torch.equal(small.metadata["masks"], large.metadata["masks"][:, 2::5, 2::5])


def test_shapes_are_two_to_four_and_masks_are_where_colour_is():
    drawn = scenes.multi_shapes(100, seed=1)
    images, masks, kinds = drawn.images.float(), drawn.metadata["masks"], drawn.metadata["shapes"]
    assert drawn.images.shape == (100, 3, 48, 48)
    assert set(drawn.labels.tolist()) == {0, 1, 2}
    assert ((kinds >= 0).sum(1) == drawn.labels + 2).all()
    grey = (images.amax(1) - images.amin(1)) == 0
    assert grey[masks == 0].all()
    assert not grey[masks > 0].any()
    for sample in range(100):
        assert len(images[sample][:, masks[sample] == 0].unique(dim=1)[0]) == 1
        assert masks[sample].max() <= drawn.labels[sample] + 2


@pytest.mark.parametrize("name", ["tetrominoes_like", "multi_shapes"])
def test_the_same_seed_draws_the_same_and_splits_differ(name):
    first, again, other = (cr.data.load(name, "train", count=30, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first.images, again.images)
    assert not torch.equal(first.images, other.images)
    validation, test = (cr.data.load(name, split, count=30, seed=5) for split in ("validation", "test"))
    assert not torch.equal(validation.images, test.images)
    assert len(cr.data.load(name, "train+validation", count=30)) == 60
    assert cr.data.load(name, "test").shape == cr.data.dataset_info(name).shape


def test_bad_sizes_are_refused_by_name():
    with pytest.raises(ValueError, match="count: expected 1 or more, got 0"):
        scenes.tetrominoes_like(0)
    with pytest.raises(ValueError, match="cell: expected 1 or more pixels, got 0"):
        scenes.tetrominoes_like(2, cell=0)
    with pytest.raises(ValueError, match="size: expected 1 or more pixels, got 0"):
        scenes.multi_shapes(2, size=0)
