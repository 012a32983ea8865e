import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from capsroute.data import DataError, FetchError, dataset_info, datasets, load
from capsroute.data.catalog.mnist import decode_amat, decode_idx
from tests.data import writers


def test_images_labels_and_splits(tiny_mnist):
    train, validation, everything = (load("mnist", split) for split in ("train", "validation", "train+validation"))
    assert everything.images.shape == (180, 1, 28, 28)
    assert everything.images[:, 0, 14, 14].tolist() == list(range(1, 181))
    assert everything.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    together = torch.cat([train.images, validation.images])[:, 0, 14, 14].tolist()
    assert sorted(together) == list(range(1, 181))
    assert len(validation) == 18
    assert load("mnist", "test").images[:, 0, 14, 14].tolist() == list(range(181, 241))


def test_any_damage_to_any_file_is_noticed(tiny_mnist):
    pick = random.Random(0)
    for file in sorted((tiny_mnist / "mnist").iterdir()):
        whole = file.read_bytes()
        split = "test" if file.name.startswith("t10k") else "train"
        for _ in range(30):
            damaged = bytearray(whole)
            damaged[pick.randrange(len(whole))] ^= 1 << pick.randrange(8)
            for content in (bytes(damaged), whole[: pick.randrange(len(whole))], whole + b"\0"):
                file.write_bytes(content)
                with pytest.raises(DataError, match=file.name):
                    load("mnist", split)
        file.write_bytes(whole)
    assert len(load("mnist", "train")) == 162


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "first", "mean"), [("mnist", [5, 0, 4, 1, 9], 0.13066), ("fashion_mnist", [9, 0, 0, 3, 0], 0.28604)]
)
def test_the_real_data_set(tmp_path, name, first, mean):
    whole, test = (load(name, split, root=tmp_path) for split in ("train+validation", "test"))
    assert whole.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert whole.labels[:5].tolist() == first
    assert (
        test.labels.bincount().tolist()
        == {"mnist": [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009], "fashion_mnist": [1000] * 10}[name]
    )
    assert abs(float(whole.images.float().mean()) / 255 - mean) < 1e-5
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]


def test_pixels_keep_their_places():
    array = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5)
    assert decode_idx(writers.idx(array), "images", dims=3).tolist() == array.tolist()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"\0\0", "header of 16 bytes, found 2"),
        (writers.idx(np.zeros((2, 3))), "3 dimensions"),
        (writers.idx(np.zeros((2, 3, 5)))[:-1], r"30 bytes for \(2, 3, 5\), found 29"),
        (writers.idx(np.zeros((2, 3, 5))) + b"\0", "found 31"),
        (writers.idx(np.zeros((0, 3, 5))), "at least one entry"),
        (b"\0\0\x09\x03" + writers.idx(np.zeros((2, 3, 5)))[4:], "magic number"),
    ],
)
def test_damage_of_idx_is_named(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_idx(content, "train-images", dims=3)
    assert "train-images" in str(caught.value)


GREYS = np.random.default_rng(0).integers(0, 256, (3, 784))
LABELS = np.array([7, 0, 9])


def test_row_by_row():
    images, labels = decode_amat(writers.amat(GREYS / 255, LABELS), "train.amat")
    assert np.array_equal(images.numpy(), GREYS.reshape(3, 1, 28, 28))
    assert labels.tolist() == LABELS.tolist()


def test_column_by_column():
    images, _ = decode_amat(writers.amat(GREYS / 255, LABELS), "train.amat", column_major=True)
    assert np.array_equal(images.numpy(), GREYS.reshape(3, 1, 28, 28).transpose(0, 1, 3, 2))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (writers.amat(GREYS / 255, LABELS + 1), "labels 0 to 9, found 1 to 10"),
        (writers.amat(GREYS / 255, LABELS + 0.5), "labels 0 to 9"),
        (writers.amat(GREYS / 128, LABELS), "pixels of 0 to 1"),
        (writers.amat(np.full((1, 784), np.nan), LABELS[:1]), "pixels of 0 to 1"),
        (writers.amat(GREYS[:, 1:] / 255, LABELS), "785 numbers a line, found 784"),
        (writers.amat(GREYS / 255, LABELS)[:-3], "last line to be whole"),
        (writers.amat(GREYS / 255, LABELS) + b"0.5 0.5\n", "something else"),
        (b"zero one two\n", "something else"),
        (b"", "last line to be whole"),
    ],
)
def test_damage_of_text_is_named(content, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_amat(content, "train.amat")
    assert "train.amat" in str(caught.value)


@pytest.mark.parametrize("name", ["rmnist", "bmnist"])
def test_both_files_and_a_sixth_for_validation(tmp_path, monkeypatch, name):
    info = replace(dataset_info(name), sizes={"train": 20, "validation": 4, "test": 10})
    monkeypatch.setitem(datasets._REGISTRY, name, info)
    greys = np.random.default_rng(0).integers(0, 256, (24, 784))
    labels = np.arange(24) % 10
    (tmp_path / info.files[0].name).write_bytes(writers.amat(greys / 255, labels))
    test = tmp_path / info.files[1].name
    test.write_bytes(writers.amat(greys[:10] / 255, labels[:10]))
    pictures = greys.reshape(24, 1, 28, 28)
    expected = pictures.transpose(0, 1, 3, 2) if name == "bmnist" else pictures
    assert np.array_equal(load(name, "train+validation", root=tmp_path).images.numpy(), expected)
    assert len(load(name, "validation", root=tmp_path)) == 4
    # Cut at the end of a line, the file is well formed but too short.
    test.write_bytes(b"".join(test.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataError, match=f"expected 10 entries in {name} test, found 9"):
        load(name, "test", root=tmp_path)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Test batches 1 and 2, of which every picture is filled with the number of its batch."""
    (tmp_path / "affnist" / "test_batches").mkdir(parents=True)
    for number in (1, 2):
        content = writers.affnist(np.full((6, 40, 40), number, np.uint8), np.arange(6))
        (tmp_path / "affnist" / "test_batches" / f"{number}.mat").write_bytes(content)
    info = replace(dataset_info("affnist"), sizes={"train": 6, "validation": 6, "test": 6})
    monkeypatch.setitem(datasets._REGISTRY, "affnist", info)
    return tmp_path


def test_the_first_batch_and_any_others(root):
    assert load("affnist", "test", root=root).images.unique().tolist() == [1]
    both = load("affnist", "test", root=root, batches=(2, 1))
    assert both.images[:, 0, 0, 0].tolist() == [2] * 6 + [1] * 6
    assert both.labels.tolist() == [0, 1, 2, 3, 4, 5] * 2


def test_a_batch_that_is_not_there_is_named(root):
    with pytest.raises(DataError, match=r"test_batches/3.mat: expected a file"):
        load("affnist", "test", root=root, batches=(3,))
    with pytest.raises(DataError, match=r"training_batches/1.mat: expected a file"):
        load("affnist", "train", root=root)


def test_without_it_the_error_says_what_to_put_where(tmp_path):
    with pytest.raises(FetchError, match=r"(?s)By hand: get test_batches/1.mat .*put them into .*affnist"):
        load("affnist", "test", root=tmp_path)
