import pytest
import torch

from capsroute.data import ImageSet, TextSet, multi_hot

IMAGES = torch.arange(4 * 1 * 2 * 2, dtype=torch.uint8).view(4, 1, 2, 2)
LABELS = torch.tensor([0, 1, 2, 1])
ABC = ("a", "b", "c")


def test_subset_takes_labels_and_metadata_along():
    images = ImageSet(IMAGES, LABELS, ABC, metadata={"azimuth": torch.tensor([10, 20, 30, 40])})
    for chosen in (torch.tensor([2, 0]), torch.tensor([True, False, True, False])):
        part = images.subset(chosen)
        assert part.images.tolist() == IMAGES[chosen].tolist()
        assert part.labels.tolist() == LABELS[chosen].tolist()
        assert part.metadata["azimuth"].tolist() == torch.tensor([10, 20, 30, 40])[chosen].tolist()
        assert part.classes == ABC


@pytest.mark.gpu
def test_to_moves_every_tensor():
    images = ImageSet(IMAGES, LABELS, ABC, metadata={"azimuth": LABELS}).to("cuda")
    assert {images.images.device.type, images.labels.device.type, images.metadata["azimuth"].device.type} == {"cuda"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((IMAGES.float(), LABELS, ABC), "images: expected uint8"),
        ((IMAGES[:, 0], LABELS, ABC), "images: expected uint8"),
        ((IMAGES, LABELS.int(), ABC), "labels: expected int64"),
        ((IMAGES, LABELS[:3], ABC), "labels: expected one row for each of 4"),
        ((IMAGES, LABELS.view(4, 1), ABC), "labels: expected int64"),
        ((IMAGES, LABELS, ("a", "b")), "labels: expected 0 to 1"),
        ((IMAGES, LABELS - 1, ABC), "labels: expected 0 to 2"),
        ((IMAGES, torch.tensor([[0, 1], [1, -2], [1, 0], [0, 1]]), ABC), "labels: expected 0 to 2"),
        ((IMAGES, torch.tensor([[0, 1], [-1, 1], [1, 0], [0, 1]]), ABC), "labels: expected 0 to 2"),
        ((IMAGES, LABELS, ABC, "x", "train", {"azimuth": LABELS[:2]}), "azimuth: expected one row"),
    ],
)
def test_what_an_image_set_refuses(arguments, complaint):
    with pytest.raises(ValueError, match=complaint):
        ImageSet(*arguments)


def test_second_label_may_say_there_is_none():
    labels = torch.tensor([[0, -1], [1, 2], [2, -1], [1, 0]])
    assert ImageSet(IMAGES, labels, ABC).labels is labels


def test_text_set_subset_and_refusals():
    texts = TextSet(("x", "y", "z"), torch.tensor([0, 1, 0]), ("no", "yes"))
    assert texts.subset(torch.tensor([2, 1])).texts == ("z", "y")
    assert texts.subset(torch.tensor([2, 1])).labels.tolist() == [0, 1]
    assert texts.subset(torch.tensor([True, False, True])).texts == ("x", "z")
    with pytest.raises(ValueError, match=r"labels: expected int64 \[3\]"):
        TextSet(("x", "y", "z"), torch.tensor([0, 1]), ("no", "yes"))
    with pytest.raises(ValueError, match="labels: expected 0 to 1"):
        TextSet(("x",), torch.tensor([2]), ("no", "yes"))


def test_multi_hot_marks_every_digit_once():
    labels = torch.tensor([[3, 1], [2, -1]])
    assert multi_hot(labels, 4).tolist() == [[0, 1, 0, 1], [0, 0, 1, 0]]
    assert multi_hot(torch.tensor([1, 0]), 2).tolist() == [[0, 1], [1, 0]]


def test_labels_as_a_list_are_refused_and_what_takes_them_is_named():
    with pytest.raises(TypeError, match=r"labels: expected a tensor, got list; cr.data.from_arrays takes"):
        ImageSet(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 1], ("a", "b"))
