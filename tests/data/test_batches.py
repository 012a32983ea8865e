import pytest
import torch

from capsroute.data import Batches, GeneratedBatches, ImageSet
from capsroute.data.augment import Affine, Compose, Cutout, Elastic, Flip, Mixup, PadCrop, Shift

N = 23
MIXED = Compose([PadCrop(1), Flip(0.5), Mixup(0.2)])


def _numbered(count=N, channels=1):
    """Images whose every pixel is the number of the image, so that a batch tells who is in it."""
    numbers = torch.arange(count, dtype=torch.uint8).view(count, 1, 1, 1)
    metadata = {"number": torch.arange(count), "parts": numbers.expand(count, 2, 3, 3).contiguous()}
    images = numbers.expand(count, channels, 3, 3).contiguous()
    return ImageSet(images, torch.arange(count) % 5, tuple("abcde"), metadata=metadata)


def _who(images):
    return (images[:, 0, 1, 1] * 255).round().long().tolist()


def _epoch(batches):
    return [tuple(part.clone() for part in batch) for batch in batches]


def _same(left, right):
    return len(left) == len(right) and all(
        len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b)) for a, b in zip(left, right)
    )


@pytest.mark.parametrize(
    ("batch_size", "drop_last", "sizes"),
    [(5, False, [5, 5, 5, 5, 3]), (5, True, [5] * 4), (23, True, [23]), (50, False, [23])],
)
def test_an_epoch_shows_every_image_once(batch_size, drop_last, sizes):
    batches = Batches(_numbered(), batch_size, drop_last=drop_last)
    epoch = _epoch(batches)
    assert [len(images) for images, _ in epoch] == sizes
    assert len(batches) == len(sizes)
    seen = [number for images, _ in epoch for number in _who(images)]
    assert len(set(seen)) == len(seen) == sum(sizes)


def test_labels_stay_with_their_images():
    for images, labels, number in Batches(_numbered(), 5, extras=("number",)):
        assert labels.tolist() == [who % 5 for who in _who(images)]
        assert number.tolist() == _who(images)


def test_order_is_new_every_epoch_and_fixed_by_the_seed():
    batches = Batches(_numbered(), 5, seed=4)
    first, second = _epoch(batches), _epoch(batches)
    assert not _same(first, second)
    again = Batches(_numbered(), 5, seed=4)
    assert _same(_epoch(again), first)
    assert _same(_epoch(again), second)
    assert not _same(_epoch(Batches(_numbered(), 5, seed=5)), first)


def test_augmentation_is_drawn_anew_for_every_step_and_epoch():
    alike = _numbered().subset(torch.full((20,), 9))
    batches = Batches(alike, 10, augment=PadCrop(1), shuffle=False)
    drawn = [images for _ in range(3) for images, _ in _epoch(batches)]
    for at, images in enumerate(drawn):
        assert not any(torch.equal(images, other) for other in drawn[:at])


def test_without_shuffle_the_order_is_the_set_s():
    seen = [number for images, _ in Batches(_numbered(), 5, shuffle=False) for number in _who(images)]
    assert seen == list(range(N))


@pytest.mark.parametrize("steps", range(16))
def test_resume_at_any_step_gives_the_very_next_batch(steps):
    def endless(batches):
        while True:
            yield from batches

    whole = Batches(_numbered(), 5, augment=MIXED, seed=2)
    stream = endless(whole)
    for _ in range(steps):
        next(stream)
    resumed = Batches(_numbered(), 5, augment=MIXED, seed=2)
    resumed.load_state_dict(whole.state_dict())
    rest = endless(resumed)
    for _ in range(8):
        assert all(torch.equal(a, b) for a, b in zip(next(stream), next(rest)))


def test_a_restored_position_survives_set_epoch_of_the_same_epoch_only():
    batches = Batches(_numbered(), 5, seed=2)
    whole = _epoch(batches)
    state = {"epoch": 0, "position": 3, "seed": 2, "batch_size": 5, "size": N}
    batches.load_state_dict(state)
    batches.set_epoch(0)
    assert _same(_epoch(batches), whole[3:])
    batches.load_state_dict(state)
    batches.set_epoch(1)
    assert len(_epoch(batches)) == 5


def test_a_loop_left_early_starts_its_epoch_again():
    batches = Batches(_numbered(), 5, seed=2)
    first = next(iter(batches))
    assert batches.state_dict()["position"] == 1
    assert torch.equal(next(iter(batches))[0], first[0])


@pytest.mark.parametrize("key", ["seed", "batch_size", "size"])
def test_the_state_of_another_run_is_refused(key):
    batches = Batches(_numbered(), 5)
    state = batches.state_dict() | {key: 77}
    with pytest.raises(ValueError, match=f"state: expected {key}"):
        batches.load_state_dict(state)


@pytest.mark.parametrize("augment", [None, PadCrop(1), MIXED])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_processes_together_see_what_one_would(world_size, augment):
    alone = _epoch(Batches(_numbered(), 6, augment=augment, extras=("parts",)))
    shares = [
        _epoch(Batches(_numbered(), 6, augment=augment, extras=("parts",), rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for step, whole in enumerate(alone):
        for part, values in enumerate(whole):
            assert torch.equal(torch.cat([share[step][part] for share in shares]), values)
        lengths = [len(share[step][0]) for share in shares]
        assert max(lengths) - min(lengths) <= 1


def test_soft_targets_only_when_the_augmentation_mixes():
    assert next(iter(Batches(_numbered(), 5, augment=PadCrop(1))))[1].dtype == torch.int64
    targets = next(iter(Batches(_numbered(), 5, augment=Mixup(0.2))))[1]
    assert targets.shape == (5, 5)
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(5))


def test_pixels_are_divided_by_255_then_normalised_channel_by_channel():
    images = ImageSet(torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 3, 1, 1), torch.tensor([0]), ("a",))
    plain, _ = next(iter(Batches(images, 1)))
    torch.testing.assert_close(plain.flatten(), torch.tensor([0.0, 0.2, 1.0]))
    normal, _ = next(iter(Batches(images, 1, normalise=((0.5, 0.2, 0.0), (0.5, 1.0, 2.0)))))
    torch.testing.assert_close(normal.flatten(), torch.tensor([-1.0, 0.0, 0.5]))
    assert next(iter(Batches(images, 1, dtype=torch.bfloat16)))[0].dtype == torch.bfloat16


def test_extras_of_bytes_become_floats_and_numbers_stay():
    _, _, parts, number = next(iter(Batches(_numbered(), 5, extras=("parts", "number"))))
    assert number.dtype == torch.int64
    torch.testing.assert_close(parts[:, 1, 0, 0] * 255, number.float())


def test_the_set_is_never_written_to():
    images = _numbered()
    _epoch(Batches(images, 5, augment=MIXED))
    assert torch.equal(images.images, _numbered().images)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 0}, "batch_size: expected a whole number >= 1"),
        ({"batch_size": 2.5}, "batch_size: expected a whole number >= 1, got 2.5"),
        ({"batch_size": 5, "normalise": ([0.5], [0.0])}, "normalise: expected a number > 0, got 0.0"),
        ({"batch_size": 5, "normalise": ([float("nan")], [1.0])}, "normalise: expected a finite number, got nan"),
        ({"batch_size": 5, "rank": 2, "world_size": 2}, "rank: expected 0 to world_size - 1 = 1, got 2"),
        ({"batch_size": 5, "normalise": ((0.5, 0.5), (1, 1))}, "normalise: expected mean and std of 1 channels"),
        ({"batch_size": 5, "extras": ("azimuth",)}, "extras: expected names among"),
    ],
)
def test_what_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        Batches(_numbered(), **options)


def test_tensors_instead_of_a_set_are_refused_and_what_makes_one_is_named():
    with pytest.raises(TypeError, match=r"image_set: expected an ImageSet, got Tensor; cr\.data\.from_arrays"):
        Batches(torch.zeros(4, 1, 8, 8), 2)


def test_an_empty_set_is_refused():
    with pytest.raises(ValueError, match="image_set: expected at least one image"):
        Batches(_numbered().subset(torch.tensor([], dtype=torch.int64)), 5)


@pytest.mark.gpu
def test_a_set_that_is_on_the_gpu_already_is_resident():
    images = _numbered().to("cuda")
    for device in (None, "cuda", "cuda:0"):
        assert Batches(images, 5, device=device, resident=False).resident


@pytest.mark.gpu
@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("augment", [None, Compose([PadCrop(1), Flip(0.5)]), MIXED])
def test_gpu_batches_equal_cpu_batches_resident_or_streamed(augment, resident):
    options = {"augment": augment, "extras": ("parts",), "seed": 3}
    on_cpu = Batches(_numbered(200, 3), 16, **options)
    on_gpu = Batches(_numbered(200, 3), 16, device="cuda", resident=resident, **options)
    assert on_gpu.resident == resident
    for _ in range(2):
        for here, there in zip(_epoch(on_cpu), _epoch(on_gpu), strict=True):
            for left, right in zip(here, there):
                assert right.device.type == "cuda"
                torch.testing.assert_close(right.cpu(), left, atol=1e-6, rtol=0)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "augment", [Shift(2), Flip(0.5), Affine(degrees=20, shift=2), Elastic(1.0), Cutout(4), Mixup(0.2)]
)
def test_nobody_waits_for_the_gpu_while_a_batch_is_augmented(augment):
    _make_second_batch_without_waiting(Batches(_numbered(200), 16, augment=augment, device="cuda"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["shifted_mnist", "expanded_mnist", "multimnist", "diverse_multimnist", "rotated_mnist"]
)
def test_nobody_waits_for_the_gpu_while_pictures_are_drawn(name):
    _make_second_batch_without_waiting(GeneratedBatches(name, _numbered(200), 16, device="cuda"))


def _make_second_batch_without_waiting(batches):
    """The first one of an epoch sends the order of all."""
    made = iter(batches)
    next(made)
    torch.cuda.set_sync_debug_mode("error")
    try:
        next(made)
    finally:
        torch.cuda.set_sync_debug_mode("default")
