import pytest
import torch

from capsroute.data import GeneratedBatches, ImageSet, generate, load
from capsroute.data.augment import Compose, Flip, Mixup
from capsroute.data.generated.drawn_batches import RULES

ONE_GREY = ["shifted_mnist", "expanded_mnist", "multimnist", "diverse_multimnist", "affnist_like", "rotated_mnist"]
SPLITS = ("train", "validation", "test")


@pytest.mark.parametrize("name", RULES)
def test_same_seed_same_pictures_other_seed_others(digits, name):
    first, again, other = (generate(name, digits, 50, seed) for seed in (1, 1, 2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


def test_more_pictures_than_digits_takes_them_over_again_and_differently(digits):
    images = generate("expanded_mnist", digits, 250).images
    numbers = images.flatten(1).amax(dim=1).long() - 1
    assert torch.equal(numbers, torch.arange(250) % 100)
    assert not torch.equal(images[:50], images[100:150])


@pytest.mark.parametrize("name", ONE_GREY)
def test_train_validation_and_test_are_drawn_from_disjoint_digits(tiny_mnist, name):
    """Every digit of the tiny MNIST has a grey of its own, which survives moving and turning."""
    truth = {split: set(load("mnist", split).images.flatten(1).amax(dim=1).tolist()) for split in SPLITS}
    for split in SPLITS:
        drawn = load(name, split, count=300)
        shown = drawn.metadata["parts"].flatten(0, 1) if "parts" in drawn.metadata else drawn.images
        greys = {int(image.max()) for image in shown} - {0}
        assert greys <= truth[split]
    assert not truth["train"] & truth["test"]
    assert not truth["train"] & truth["validation"]


def test_default_sizes_are_those_of_the_table(tiny_mnist):
    assert len(load("rotated_mnist", "validation")) == 2000
    assert load("background_mnist", "validation").images.shape == (2000, 1, 28, 28)


def test_labels_name_the_digits_shown(tiny_mnist):
    digits = load("mnist", "test")
    label_of = dict(zip(digits.images[:, 0, 14, 14].tolist(), digits.labels.tolist()))
    drawn = load("multimnist", "test", count=200)
    greys = drawn.metadata["parts"].flatten(2).amax(dim=2)
    assert [[label_of[grey] for grey in pair] for pair in greys.tolist()] == drawn.labels.tolist()


def test_batches_are_new_every_epoch_and_take_every_digit_once(digits):
    batches = GeneratedBatches("multimnist", digits, 16, seed=3, extras=("parts",))
    epochs = [[tuple(part.clone() for part in batch) for batch in batches] for _ in range(2)]
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
    for epoch in epochs:
        firsts = torch.cat([parts[:, 0].flatten(1).amax(dim=1) for _, _, parts in epoch])
        assert sorted((firsts * 255).round().long().tolist()) == list(range(1, 101))
        images, labels, parts = epoch[0]
        assert images.shape == (16, 1, 36, 36)
        assert labels.shape == (16, 2)
        torch.testing.assert_close(images, parts.sum(dim=1, keepdim=True).clamp(max=1))


def test_pictures_of_the_same_digits_are_drawn_anew_for_every_step_and_epoch(digits):
    alike = digits.subset(torch.cat([torch.full((10,), 3), torch.full((10,), 3)]))
    batches = GeneratedBatches("expanded_mnist", alike, 10, shuffle=False)
    drawn = [images for _ in range(3) for images, _ in batches]
    for at, images in enumerate(drawn):
        assert not any(torch.equal(images, other) for other in drawn[:at])


@pytest.mark.parametrize("steps", [0, 1, 4, 7, 9])
def test_resume_at_any_step(digits, steps):
    def endless(batches):
        while True:
            yield from batches

    augment = Compose([Flip(0.5), Mixup(0.2)])
    whole, resumed = (GeneratedBatches("diverse_multimnist", digits, 16, augment=augment) for _ in range(2))
    stream = endless(whole)
    for _ in range(steps):
        next(stream)
    resumed.load_state_dict(whole.state_dict())
    rest = endless(resumed)
    for _ in range(9):
        assert all(torch.equal(a, b) for a, b in zip(next(stream), next(rest)))


@pytest.mark.parametrize("augment", [None, Flip(0.5)])
def test_processes_together_see_what_one_would(digits, augment):
    options = {"augment": augment, "extras": ("parts",)}
    alone = list(GeneratedBatches("multimnist", digits, 16, **options))
    shares = [list(GeneratedBatches("multimnist", digits, 16, rank=r, world_size=3, **options)) for r in range(3)]
    for step, whole in enumerate(alone):
        for part, values in enumerate(whole):
            assert torch.equal(torch.cat([share[step][part] for share in shares]), values)


def test_soft_targets_of_two_digits(digits):
    _, targets = next(iter(GeneratedBatches("multimnist", digits, 16, augment=Mixup(0.2))))
    torch.testing.assert_close(targets.sum(dim=1), torch.full((16,), 2.0))


def test_what_is_refused(digits):
    with pytest.raises(ValueError, match=r"name: expected one of shifted_mnist.* got 'toynorb'"):
        GeneratedBatches("toynorb", digits, 16)
    with pytest.raises(ValueError, match=r"extras: expected names among \[\], got 'parts'"):
        GeneratedBatches("shifted_mnist", digits, 16, extras=("parts",))
    with pytest.raises(ValueError, match="count: expected 1 or more, got 0"):
        generate("shifted_mnist", digits, 0)


def test_a_generated_set_is_an_image_set(digits):
    drawn = generate("multimnist", digits, 5)
    assert isinstance(drawn, ImageSet)
    assert (drawn.name, drawn.split) == ("multimnist", "train")
