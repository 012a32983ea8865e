"""The decoder sees all class capsules, with all but the named ones zeroed."""

import numpy as np
import pytest
import torch

from capsroute.layers import Decoder, mask_capsules
from tests.layers.filled import indices, numbers


def test_only_the_labelled_capsule_is_left_and_stays_in_its_place():
    poses = indices(3, 4, 2, 5) + 1
    masked = mask_capsules(poses, torch.tensor([2, 0, 3]))
    assert masked.shape == (3, 40)
    for sample, label in enumerate([2, 0, 3]):
        row = masked[sample].view(4, 2, 5)
        assert torch.equal(row[label], poses[sample, label])
        assert row.count_nonzero() == 10


def test_a_mask_leaves_several_capsules():
    poses = indices(1, 4, 1, 5) + 1
    row = mask_capsules(poses, torch.tensor([[1, 0, 0, 1]])).view(4, 5)
    assert torch.equal(row[[0, 3]], poses[0, [0, 3], 0])
    assert row[[1, 2]].count_nonzero() == 0


def test_no_gradient_reaches_the_others():
    poses = numbers(2, 3, 1, 4).requires_grad_()
    mask_capsules(poses, torch.tensor([1, 2])).square().sum().backward()
    assert poses.grad.abs().sum((2, 3)).ne(0).tolist() == [[False, True, False], [False, False, True]]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (torch.tensor([0, 1, 2]), "labels: expected"),
        (torch.zeros(2, 5), "labels: expected"),
        (torch.tensor([0, 1], dtype=torch.int32), "dtype int64"),
        (torch.tensor([0.0, 1.0]), "dtype int64"),
    ],
)
def test_labels_that_fit_no_capsules_are_named(labels, message):
    with pytest.raises(ValueError, match=message):
        mask_capsules(torch.zeros(2, 3, 1, 4), labels)


@pytest.mark.parametrize("pose", [6, (2, 3)])
def test_images_have_the_shape_asked_for_and_lie_between_zero_and_one(pose):
    decoder = Decoder(4, pose, (3, 5, 7), hidden=(8, 9))
    rows, columns = (1, 6) if pose == 6 else pose
    image = decoder(100 * torch.randn(2, 4, rows, columns), torch.tensor([0, 3]))
    assert image.shape == (2, 3, 5, 7)
    assert 0 <= image.min() <= image.max() <= 1


def test_it_has_the_size_of_the_paper():
    sizes = [tuple(layer.weight.shape) for layer in Decoder(10, 16, (1, 28, 28)).layers[::2]]
    assert sizes == [(512, 160), (1024, 512), (784, 1024)]


@pytest.mark.parametrize("bad", [(28, 28), 28, (1, 28, 0), (1, 28.0, 28), (True, 28, 28), None])
def test_a_shape_that_no_image_has_is_named(bad):
    with pytest.raises(ValueError, match=r"image_shape: expected \(channels, height, width\), got"):
        Decoder(10, 16, bad)


@pytest.mark.parametrize("shape", [(3, 3, 4), (2, 3, 4), (2, 3), (2, 3, 1, 4, 1)])
def test_poses_without_rows_are_named_and_not_mixed_up(shape):
    with pytest.raises(ValueError, match=r"poses: expected \[b,j,a,o\], got"):
        mask_capsules(torch.zeros(shape), torch.zeros(shape[0], dtype=torch.int64))


@pytest.mark.parametrize("shape", [(2, 3, 1, 5), (2, 4, 1, 4), (2, 3, 2, 4)])
def test_poses_of_another_size_are_named(shape):
    with pytest.raises(ValueError, match=r"poses: expected 12 numbers a sample, got shape"):
        Decoder(3, 4, (1, 5, 5))(torch.zeros(shape), torch.tensor([0, 1]))


@pytest.mark.parametrize(
    ("options", "name"), [({"capsules": 0}, "capsules"), ({"hidden": (3,)}, "hidden"), ({"hidden": (3, 0)}, "hidden")]
)
def test_sizes_that_no_decoder_has_are_named(options, name):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        Decoder(**{"capsules": 3, "pose": 4, "image_shape": (1, 5, 5)} | options)


def test_a_shape_may_be_of_numpys_numbers():
    assert Decoder(3, 4, [np.int64(1), np.int64(5), 6]).image_shape == (1, 5, 6)


def test_its_layers_may_be_wrapped():
    decoder = Decoder(3, 4, (1, 5, 5))
    decoder.layers[0] = torch.nn.Sequential(decoder.layers[0])
    assert decoder(torch.zeros(2, 3, 1, 4), torch.tensor([0, 1])).shape == (2, 1, 5, 5)
