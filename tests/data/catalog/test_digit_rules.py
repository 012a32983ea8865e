import math
from dataclasses import replace

import pytest
import torch

from capsroute.data import GeneratedBatches, ImageSet, generate, load
from capsroute.data.augment import Compose, Flip, Mixup, warp
from capsroute.data.catalog.digit_rules import (
    RULES,
    AffnistLike,
    BackgroundMNIST,
    DiverseMultiMNIST,
    ExpandedMNIST,
    MultiMNIST,
    RotatedMNIST,
    ShiftedMNIST,
    to_bytes,
)
from tests.data.catalog.conftest import HEIGHT, LEFT, TOP, WIDTH, corners

ROWS = torch.arange(100).repeat(20)


def _seeded():
    return torch.Generator().manual_seed(5)


def _check_block_moved_whole(images, numbers, first_rows, first_columns):
    """Each picture is its digit's block, unchanged, and over all pictures it starts at exactly these places."""
    found = corners(images[:, 0])
    assert set(found[:, 0].tolist()) == set(first_rows)
    assert set(found[:, 2].tolist()) == set(first_columns)
    assert (found[:, 1] - found[:, 0] == HEIGHT - 1).all()
    assert (found[:, 3] - found[:, 2] == WIDTH - 1).all()
    assert torch.equal(images.flatten(1).amax(dim=1).long(), numbers + 1)
    assert torch.equal(images.flatten(1).long().sum(dim=1), (numbers + 1) * HEIGHT * WIDTH)


def test_shifted_by_up_to_two_pixels(digits):
    drawn = ShiftedMNIST(digits)(ROWS, _seeded())
    assert drawn.images.shape == (2000, 1, 28, 28)
    _check_block_moved_whole(drawn.images, ROWS, range(TOP - 2, TOP + 3), range(LEFT - 2, LEFT + 3))
    assert torch.equal(drawn.labels, ROWS % 10)


def test_expanded_anywhere_on_forty_pixels(digits):
    drawn = ExpandedMNIST(digits)(ROWS, _seeded())
    assert drawn.images.shape == (2000, 1, 40, 40)
    _check_block_moved_whole(drawn.images, ROWS, range(TOP, TOP + 13), range(LEFT, LEFT + 13))
    assert torch.equal(drawn.labels, ROWS % 10)


def test_affnist_like_keeps_all_ink_inside_and_goes_to_every_edge(digits):
    bright = ImageSet(digits.images.clamp(max=1) * 200, digits.labels, digits.classes)
    rule = AffnistLike(bright)
    images = rule(ROWS, _seeded()).images
    assert images.shape == (2000, 1, 40, 40)
    # The same maps and shifts on a larger picture: no ink where the 40 pixels end.
    draw = _seeded()
    maps = rule.affine.draw_maps(2000, draw)
    low, high = rule._room(bright.images[ROWS], maps)
    shifts = low + (high - low) * torch.rand(2000, 2, generator=draw, dtype=torch.float64)
    larger = to_bytes(warp(bright.images[ROWS].float() / 255, maps, shifts, (50, 50)))
    torch.testing.assert_close(larger[:, :, 5:-5, 5:-5].int(), images.int(), atol=1, rtol=0)
    larger[:, :, 5:-5, 5:-5] = 0
    assert not larger.any()
    found = corners(images[:, 0])
    assert found.amin(dim=0)[[0, 2]].tolist() == [0, 0]
    assert found.amax(dim=0)[[1, 3]].tolist() == [39, 39]
    # What is left of the ink is the block's area times both scales: between 0.64 and 1.44 times.
    area = images.float().sum(dim=(1, 2, 3)) / 200 / (HEIGHT * WIDTH)
    assert 0.6 < float(area.min()) < 0.7
    assert 1.35 < float(area.max()) < 1.5


def test_affnist_like_centres_a_digit_too_large_to_fit_and_takes_an_empty_one(digits):
    full = torch.full((2, 1, 40, 40), 255, dtype=torch.uint8)
    full[1] = 0
    images = AffnistLike(ImageSet(full, torch.tensor([0, 1]), digits.classes))(torch.tensor([0, 1]), _seeded()).images
    assert int(images[0, 0, 15:25, 15:25].min()) == 255
    assert not images[1].any()


def test_rotated_turns_by_the_angle_it_says(digits):
    drawn = RotatedMNIST(digits)(ROWS, _seeded())
    angle = drawn.metadata["angle"]
    assert drawn.images.shape == (2000, 1, 28, 28)
    assert 0 <= float(angle.min()) < 0.02
    assert 2 * math.pi - 0.02 < float(angle.max()) < 2 * math.pi
    # The middle of the block, seen from the centre of the picture, turns counter-clockwise.
    middle = torch.tensor([LEFT + (WIDTH - 1) / 2 - 13.5, TOP + (HEIGHT - 1) / 2 - 13.5])
    weights = drawn.images[:, 0].float()
    total = weights.sum(dim=(1, 2))
    line = torch.arange(28) - 13.5
    x, y = (weights * line).sum(dim=(1, 2)) / total, (weights * line[:, None]).sum(dim=(1, 2)) / total
    grey = ROWS >= 20  # faint digits lose too much to rounding
    expected_x = middle[0] * angle.cos() + middle[1] * angle.sin()
    expected_y = -middle[0] * angle.sin() + middle[1] * angle.cos()
    torch.testing.assert_close(x[grey], expected_x[grey], atol=0.05, rtol=0)
    torch.testing.assert_close(y[grey], expected_y[grey], atol=0.05, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [ShiftedMNIST, ExpandedMNIST, AffnistLike, RotatedMNIST])
def test_cpu_and_gpu_draw_the_same(digits, rule):
    here, there = (rule(digits.to(device))(ROWS, _seeded()) for device in ("cpu", "cuda"))
    assert int((here.images.int() - there.images.cpu().int()).abs().max()) <= (
        0 if rule in (ShiftedMNIST, ExpandedMNIST) else 1
    )
    assert torch.equal(here.labels, there.labels.cpu())


MORE_ROWS = torch.arange(100).repeat(30)


def test_multimnist_shows_two_digits_of_different_classes(digits):
    images, labels, metadata = MultiMNIST(digits)(MORE_ROWS, _seeded())
    parts = metadata["parts"]
    assert images.shape == (3000, 1, 36, 36)
    assert parts.shape == (3000, 2, 36, 36)
    assert torch.equal(labels[:, 0], MORE_ROWS % 10)
    assert (labels[:, 0] != labels[:, 1]).all()
    # The grey of each part names the digit it shows, and the digit names its label.
    numbers = parts.flatten(2).amax(dim=2).long() - 1
    assert torch.equal(numbers[:, 0], MORE_ROWS)
    assert torch.equal(numbers % 10, labels)
    assert torch.equal(images[:, 0].int(), parts.int().sum(dim=1).clamp(max=255))


def test_two_bright_digits_are_no_brighter_than_white(digits):
    digits.images[digits.images > 0] = 200
    images, _, metadata = MultiMNIST(digits)(MORE_ROWS, _seeded())
    shown = metadata["parts"] > 0
    assert (images[:, 0][shown.all(dim=1)] == 255).all()
    assert (images[:, 0][shown.sum(dim=1) == 1] == 200).all()
    assert (images[:, 0][~shown.any(dim=1)] == 0).all()


def test_both_digits_shift_by_up_to_four_pixels_each_on_its_own(digits):
    parts = MultiMNIST(digits)(MORE_ROWS, _seeded()).metadata["parts"]
    first, second = corners(parts[:, 0]), corners(parts[:, 1])
    for found in (first, second):
        assert set(found[:, 0].tolist()) == set(range(TOP, TOP + 9))
        assert set(found[:, 2].tolist()) == set(range(LEFT, LEFT + 9))
        assert (found[:, 1] - found[:, 0] == HEIGHT - 1).all()
        assert (found[:, 3] - found[:, 2] == WIDTH - 1).all()
    assert float((first[:, 0] == second[:, 0]).float().mean()) < 0.2


def test_partners_are_uniform_over_all_digits_of_other_classes(digits):
    # Unequal classes: 55 zeros, then five digits of each other class.
    digits = digits.subset(torch.cat([torch.arange(0, 100, 10).repeat(6)[:55], torch.arange(1, 10).repeat(5)]))
    rule = MultiMNIST(digits)
    rows = torch.arange(100).repeat(2000)
    partners = rule.partners(rows, _seeded())
    assert (digits.labels[partners] != digits.labels[rows]).all()
    chosen = partners[digits.labels[rows] == 3]
    counts = torch.bincount(chosen, minlength=100)[digits.labels != 3]
    expected = len(chosen) / 95
    assert (counts - expected).abs().max() < 6 * expected**0.5


def test_two_classes_are_needed(digits):
    with pytest.raises(ValueError, match="digits: expected digits of at least two classes"):
        MultiMNIST(digits.subset(digits.labels == 4))


def test_one_picture_in_six_of_diverse_multimnist_shows_one_digit(digits):
    images, labels, metadata = DiverseMultiMNIST(digits)(MORE_ROWS.repeat(2), _seeded())
    parts = metadata["parts"]
    alone = labels[:, 1] == -1
    assert abs(float(alone.float().mean()) - 1 / 6) < 5 * (5 / 36 / 6000) ** 0.5
    assert not parts[alone, 1].any()
    assert torch.equal(images[alone, 0], parts[alone, 0])
    assert (labels[~alone, 0] != labels[~alone, 1]).all()
    assert torch.equal((parts[~alone, 1].flatten(1).amax(dim=1).long() - 1) % 10, labels[~alone, 1])
    assert torch.equal(images[:, 0].int(), parts.int().sum(dim=1).clamp(max=255))


def test_background_is_a_patch_of_a_photograph_and_the_digit_is_white(digits):
    white = digits.subset(torch.arange(100))
    white.images[white.images > 0] = 255
    rule = BackgroundMNIST(white)
    images = rule(MORE_ROWS, _seeded()).images
    ink = white.images[MORE_ROWS] > 0
    assert (images[ink] == 255).all()
    known = {patch.tobytes() for turned in (rule.patches, rule.patches.flip(3)) for patch in turned[..., :5].numpy()}
    assert all(image[..., :5].tobytes() in known for image in images[:200].numpy())  # no ink in the first 5 columns
    assert len({image[..., :5].tobytes() for image in images.numpy()}) > 2500


def test_grey_ink_covers_as_much_as_it_is_dark(digits):
    rule = BackgroundMNIST(digits)
    images = rule(MORE_ROWS, _seeded()).images.int()
    empty = digits.subset(torch.arange(100))
    empty.images[:] = 0
    behind = BackgroundMNIST(empty)(MORE_ROWS, _seeded()).images.int()
    ink = digits.images[MORE_ROWS].float() / 255
    torch.testing.assert_close(images.float(), behind + (255 - behind) * ink, atol=0.5, rtol=0)


def test_test_digits_get_other_patches_than_training_digits(digits):
    train, test = BackgroundMNIST(digits), BackgroundMNIST(replace(digits, split="test"))
    assert min(len(train.patches), len(test.patches)) > 5000
    seen = {patch.tobytes() for patch in train.patches.numpy()}
    assert not any(patch.tobytes() in seen for patch in test.patches.numpy())
    for rule in (train, test):
        assert float(rule.patches.float().std(dim=(1, 2, 3)).min()) > 11.5


@pytest.mark.gpu
@pytest.mark.parametrize("rule", [MultiMNIST, DiverseMultiMNIST, BackgroundMNIST])
def test_cpu_and_gpu_put_the_same_together(digits, rule):
    here, there = (rule(digits.to(device))(MORE_ROWS, _seeded()) for device in ("cpu", "cuda"))
    assert torch.equal(here.images, there.images.cpu())
    assert torch.equal(here.labels, there.labels.cpu())
    for key, values in here.metadata.items():
        assert torch.equal(values, there.metadata[key].cpu())


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
