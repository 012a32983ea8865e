"""Images that stay in files or on disk: the same batches as from memory, in little memory, and resumable."""

import io
import warnings

import pytest
import torch
from PIL import Image

from capsroute.data import Batches, DataError, DataWarning, augment, from_path
from capsroute.data.images import path as paths
from capsroute.data.images.path import Storing
from capsroute.data.images.streamed import StreamedBatches, StreamedSet
from tests.data.images.shapes import make_shapes
from tests.data.memory import anonymous_memory

AUGMENT = augment.Compose([augment.Shift(2), augment.Flip()])
MIXED = augment.Compose([augment.Shift(2), augment.Mixup(0.5)])


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("own") / "shapes", 14)


def load(shapes, **options):
    return from_path(shapes, (12, 12), **options)["train"]


def assert_equal(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs):
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(one, other))


def batches(images, **options):
    kind = StreamedBatches if isinstance(images, StreamedSet) else Batches
    return kind(images, 8, **{"seed": 3, "augment": AUGMENT, **options})


@pytest.mark.parametrize("kind", ["disk", "stream"])
@pytest.mark.parametrize("augmentation", [None, AUGMENT, MIXED])
def test_batches_are_those_of_a_set_in_memory(shapes, tmp_path, kind, augmentation):
    kept, elsewhere = load(shapes), load(shapes, store=kind, root=tmp_path, workers=0)
    for _ in range(2):
        assert_equal(batches(kept, augment=augmentation), batches(elsewhere, augment=augmentation))
    assert torch.equal(elsewhere.subset(torch.tensor([3, 1])).images, kept.images[[3, 1]])


@pytest.mark.parametrize("augmentation", [None, AUGMENT, MIXED])
def test_two_processes_see_together_what_one_sees(shapes, augmentation):
    whole = list(batches(load(shapes), augment=augmentation))
    streamed = load(shapes, store="stream", workers=0)
    shares = [list(batches(streamed, augment=augmentation, rank=rank, world_size=2)) for rank in (0, 1)]
    for step, (images, labels) in enumerate(whole):
        assert torch.equal(images, torch.cat([share[step][0] for share in shares]))
        assert torch.equal(labels, torch.cat([share[step][1] for share in shares]))


def test_each_process_decodes_only_its_share(shapes, monkeypatch):
    streamed = load(shapes, store="stream", workers=0)
    decoded = []
    picture = type(streamed.listing).picture
    monkeypatch.setattr(
        type(streamed.listing), "picture", lambda self, row, *rest: decoded.append(row) or picture(self, row, *rest)
    )
    for _ in batches(streamed, rank=1, world_size=2):
        pass
    assert len(decoded) == len(streamed) // 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_exactly_where_it_was_left(shapes, workers):
    streamed = load(shapes, store="stream", workers=workers)
    whole, first = batches(streamed), batches(streamed)
    list(whole), list(first)  # an epoch
    expected, seen = list(whole), []
    for step, batch in enumerate(first):
        seen.append(batch)
        if step == 1:
            state = first.state_dict()
            break
    resumed = batches(streamed)
    resumed.load_state_dict(state)
    resumed.set_epoch(1)
    drawn = torch.get_rng_state()
    assert_equal([*seen, *resumed], expected)
    assert torch.equal(torch.get_rng_state(), drawn)  # the model's random numbers are left alone
    assert_equal(resumed, whole)  # and the epoch after


@pytest.mark.parametrize(("before", "after"), [("memory", 0), (0, "memory"), (0, 1)])
def test_a_run_may_go_on_with_another_store_or_number_of_workers(shapes, before, after):
    def made(kind):
        options = {"store": "memory"} if kind == "memory" else {"store": "stream", "workers": kind}
        return batches(load(shapes, **options))

    first, second = made(before), made(after)
    expected = list(made("memory"))
    for step, _ in enumerate(first):
        if step == 1:
            second.load_state_dict(first.state_dict())
            break
    assert_equal(second, expected[2:])


def test_what_is_too_large_for_memory_goes_to_disk_then_to_a_stream(monkeypatch):
    assert Storing(memory_limit=100).choose(100) == "memory"
    assert Storing(memory_limit=100).choose(101) == "disk"
    monkeypatch.setattr(paths, "_free_bytes", lambda folder: 105)
    assert Storing(memory_limit=100).choose(101) == "stream"
    assert Storing(store="disk").choose(10**15) == "disk"
    with pytest.raises(ValueError, match="store: expected one of auto, memory, disk, stream, got 'tape'"):
        Storing(store="tape")


def test_the_file_on_disk_is_made_once_and_again_when_a_picture_changes(shapes, tmp_path, monkeypatch):
    calls = []
    fill = paths._fill
    monkeypatch.setattr(paths, "_fill", lambda *given: calls.append(1) or fill(*given))
    before = load(shapes, store="disk", root=tmp_path)
    assert torch.equal(load(shapes, store="disk", root=tmp_path).images, before.images)
    assert len(calls) == 1
    Image.new("RGB", (30, 30), "red").save(next(iter(sorted((shapes / "kreis").iterdir()))))
    load(shapes, store="disk", root=tmp_path)
    assert len(calls) == 2


@pytest.mark.parametrize("kind", ["disk", "stream"])
def test_bad_files_are_left_out_or_raised(tmp_path, kind):
    folder = make_shapes(tmp_path / "shapes", 6)
    for file in list((folder / "kreis").iterdir())[:2]:
        file.write_bytes(b"not a picture")
    options = {"store": kind, "root": tmp_path, "validation": False, "workers": 0}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sets = from_path(folder, (12, 12), **options)
        seen = [labels for images in sets.values() for _, labels in batches(images)]
    assert sum(map(len, seen)) == 16
    assert any(issubclass(warning.category, DataWarning) and "left out" in str(warning.message) for warning in told)
    with pytest.raises(DataError, match="expected a picture"):  # noqa: PT012
        for images in from_path(folder, (12, 12), strict=True, **options).values():
            list(batches(images))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk", "stream"])
def test_memory_stays_flat_over_a_hundred_thousand_images(tmp_path, kind):
    content = io.BytesIO()
    Image.new("RGB", (16, 16), "red").save(content, "png")
    for number in range(100_000):
        file = tmp_path / "many" / str(number % 2) / f"{number // 1000}" / f"{number}.png"
        if number % 1000 < 2:
            file.parent.mkdir(parents=True)
        file.write_bytes(content.getvalue())
    options = {"store": kind, "root": tmp_path, "workers": 0, "validation": False}
    list(batches(from_path(make_shapes(tmp_path / "shapes", 14), (32, 32), **options)["train"]))  # all is imported
    before, seen = anonymous_memory(), 0
    images = from_path(tmp_path / "many", (32, 32), **options)["train"]
    assert anonymous_memory() - before < 150_000  # names and labels; the pixels are 300,000 kilobytes
    for step, (_, labels) in enumerate(batches(images, augment=None)):
        seen += len(labels)
        if step == 100:
            before = anonymous_memory()
    assert anonymous_memory() - before < 20_000
    assert seen == 80_000


@pytest.mark.gpu
@pytest.mark.parametrize("augmentation", [None, AUGMENT, MIXED])
def test_batches_on_a_gpu_are_those_on_a_cpu(shapes, augmentation):
    streamed = load(shapes, store="stream", workers=2)
    for (images, labels), (ours, theirs) in zip(
        batches(streamed, augment=augmentation, device="cuda"), batches(streamed, augment=augmentation)
    ):
        assert images.device.type == labels.device.type == "cuda"
        torch.testing.assert_close(images.cpu(), ours)
        torch.testing.assert_close(labels.cpu(), theirs)
