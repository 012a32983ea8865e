import pytest
import torch

from capsroute.data import ImageSet, TextSet, multi_hot
from capsroute.data.sets import cut_instance, cut_split, stratified_cut

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


@pytest.mark.parametrize("classes", [(3, 4), "ab"])
def test_classes_that_are_no_names_are_refused(classes):
    with pytest.raises(TypeError, match="classes: expected names, such as"):
        ImageSet(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([0, 1]), classes)


@pytest.mark.parametrize(
    ("labels", "classes", "complaint"),
    [
        (torch.tensor([0, 3]), 3, "labels: expected 0 to 2 for 3 classes, got 0 to 3"),
        (torch.tensor([0, -1]), 3, "labels: expected 0 to 2 for 3 classes, got -1 to 0"),
        (torch.tensor([[0, 50]]), 3, "labels: expected -1 to 2 for 3 classes, got 0 to 50"),
        (torch.tensor([0.0, 1.0]), 3, r"labels: expected whole numbers \[n\] or \[n, 2\], got torch.float32 \[2\]"),
        ([0, 1], 3, r"labels: expected whole numbers \[n\] or \[n, 2\], got list"),
        (torch.tensor([0, 1]), 2.5, "classes: expected a whole number >= 1, got 2.5"),
    ],
)
def test_multi_hot_of_labels_that_are_no_classes_is_refused(labels, classes, complaint):
    with pytest.raises(ValueError, match=complaint):
        multi_hot(labels, classes)


def test_labels_as_a_list_are_refused_and_what_takes_them_is_named():
    with pytest.raises(TypeError, match=r"labels: expected a tensor, got list; cr.data.from_arrays takes"):
        ImageSet(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), [0, 1], ("a", "b"))


def _numbered(labels, **metadata):
    count = len(labels)
    images = torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1)
    return ImageSet(images, labels, ("a", "b", "c"), metadata=metadata)


@pytest.mark.parametrize("count", [0, 1, 7, 20, 59])
def test_cut_is_exact_disjoint_and_proportional(count):
    labels = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)
    rest, held = stratified_cut(labels, count)
    assert len(held) == count
    assert sorted([*rest.tolist(), *held.tolist()]) == list(range(60))
    for label, share in ((0, 1 / 2), (1, 1 / 3), (2, 1 / 6)):
        assert abs(int((labels[held] == label).sum()) - count * share) < 1


def test_the_cut_never_changes():
    # Written down on the day it was made: published numbers depend on which images are held out.
    _, held = stratified_cut(torch.arange(40) % 4, 8)
    assert held.tolist() == [3, 10, 16, 18, 20, 21, 33, 35]


def test_train_and_validation_make_up_the_training_data():
    everything = _numbered(torch.arange(60) % 3)
    train, validation = (cut_split(everything, split, parts=6) for split in ("train", "validation"))
    assert len(validation) == 10
    together = torch.cat([train.images, validation.images]).flatten().tolist()
    assert sorted(together) == list(range(60))
    assert cut_split(everything, "train+validation") is everything
    assert cut_split(everything, "test") is everything


def test_views_of_one_toy_are_never_in_train_and_validation():
    instance = torch.arange(60) % 5 + 2
    toys = _numbered(torch.arange(60) // 20, instance=instance)
    train, validation = (cut_instance(toys, split) for split in ("train", "validation"))
    assert set(train.metadata["instance"].tolist()) == {2, 3, 4, 5}
    assert set(validation.metadata["instance"].tolist()) == {6}
    assert len(cut_instance(toys, "test")) == 60


def test_holding_out_everything_is_refused():
    with pytest.raises(ValueError, match="count: expected 0 to 2 held-out rows, got 3"):
        stratified_cut(torch.zeros(3, dtype=torch.int64), 3)
