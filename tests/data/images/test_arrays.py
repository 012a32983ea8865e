import io
import os
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from capsroute.data import Batches, DataError, from_arrays, from_dataset, from_folder, from_path
from tests.data import writers
from tests.data.memory import little_memory

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (4, 6, 5, 3), dtype=np.uint8)  # [n, h, w, c]
LABELS = np.array([0, 1, 1, 0])


@pytest.fixture
def folder(tmp_path):
    """`dog/0.png`, `dog/3.png`, `cat/1.png`, `cat/2.png` and a file that is no picture."""
    for index, name in enumerate(("dog", "cat", "cat", "dog")):
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{index}.png").write_bytes(writers.png(PIXELS[index]))
    (tmp_path / "dog" / "notes.txt").write_text("good dog")
    return tmp_path


def test_folder_of_pictures_per_class(folder):
    images = from_folder(folder)
    assert images.classes == ("cat", "dog")
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert np.array_equal(images.images.numpy(), PIXELS[[1, 2, 0, 3]].transpose(0, 3, 1, 2))
    grey = from_folder(folder, mode="L")
    assert np.array_equal(grey.images[2, 0].numpy(), np.array(Image.fromarray(PIXELS[0]).convert("L")))


def test_empty_class_folder(folder):
    (folder / "eel").mkdir()
    with pytest.raises(DataError, match="eel: expected at least one picture"):
        from_folder(folder)


def test_images_of_mixed_size(folder):
    (folder / "dog" / "big.png").write_bytes(writers.png(np.zeros((7, 9, 3), np.uint8)))
    with pytest.raises(DataError, match=r"big.png: expected 5x6 pixels as the first picture, found 9x7 pixels"):
        from_folder(folder)


def test_truncated_and_damaged_pictures(folder):
    whole = (folder / "cat" / "1.png").read_bytes()
    for damaged in (whole[:-20], whole[:50] + b"\0" + whole[51:], b"", b"not a picture"):
        (folder / "cat" / "1.png").write_bytes(damaged)
        with pytest.raises(DataError, match=r"1.png: expected"):
            from_folder(folder)


def test_no_class_folders(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(DataError, match="one folder a class, found none"):
            from_folder(path)
    with pytest.raises(ValueError, match="mode: expected 'RGB' or 'L', got 'CMYK'"):
        from_folder(tmp_path, mode="CMYK")


@pytest.mark.parametrize(
    "images",
    [PIXELS, PIXELS.transpose(0, 3, 1, 2), torch.from_numpy(PIXELS), PIXELS / 255.0, (PIXELS / 255).astype(np.float32)],
)
def test_arrays_of_any_layout(images):
    found = from_arrays(images, LABELS, ("a", "b"))
    assert np.array_equal(found.images.numpy(), PIXELS.transpose(0, 3, 1, 2))
    assert found.labels.tolist() == LABELS.tolist()


def test_grey_arrays_get_a_channel_and_labels_their_numbers_as_names():
    found = from_arrays(PIXELS[..., 0], LABELS)
    assert found.images.shape == (4, 1, 6, 5)
    assert found.classes == ("0", "1")


def test_npz_and_npy_files(tmp_path):
    np.savez_compressed(tmp_path / "pets.npz", images=PIXELS, labels=LABELS)
    np.save(tmp_path / "images.npy", PIXELS.transpose(0, 3, 1, 2))
    np.save(tmp_path / "labels.npy", LABELS)
    for found in (from_arrays(tmp_path / "pets.npz"), from_arrays(tmp_path / "images.npy", tmp_path / "labels.npy")):
        assert np.array_equal(found.images.numpy(), PIXELS.transpose(0, 3, 1, 2))
        assert next(iter(Batches(found, 4, shuffle=False)))[1].tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("images", "labels", "classes", "complaint"),
    [
        (PIXELS, LABELS[:3], None, "expected 4 whole numbers as labels"),
        (PIXELS, LABELS.astype(float), None, "whole numbers"),
        (PIXELS, LABELS - 1, None, "labels 0 to 0, found -1 to 0"),
        (PIXELS, LABELS, ("a",), "labels 0 to 0, found 0 to 1"),
        (PIXELS.astype(np.int64), LABELS, None, "bytes, or floats"),
        (PIXELS / 100.0, LABELS, None, "bytes, or floats"),
        (np.full((4, 2, 2), np.nan), LABELS, None, "bytes, or floats"),
        (PIXELS[0, 0], LABELS, None, r"expected \[n, h, w\]"),
        (PIXELS[:0], LABELS[:0], None, r"expected \[n, h, w\]"),
    ],
)
def test_arrays_that_are_refused(images, labels, classes, complaint):
    with pytest.raises(DataError, match=complaint):
        from_arrays(images, labels, classes)


def test_damaged_and_wrong_files(tmp_path):
    np.savez_compressed(tmp_path / "pets.npz", images=PIXELS, labels=LABELS)
    np.save(tmp_path / "images.npy", PIXELS)
    np.savez(tmp_path / "other.npz", pictures=PIXELS)
    whole = (tmp_path / "pets.npz").read_bytes()
    for cut in range(0, len(whole), 7):
        (tmp_path / "pets.npz").write_bytes(whole[:cut])
        with pytest.raises(DataError, match=r"pets.npz: expected"):
            from_arrays(tmp_path / "pets.npz")
    (tmp_path / "images.npy").write_bytes((tmp_path / "images.npy").read_bytes()[:-1])
    with pytest.raises(DataError, match=r"images.npy: expected a whole .npy file"):
        from_arrays(tmp_path / "images.npy", LABELS)
    with pytest.raises(DataError, match="arrays 'images' and 'labels'"):
        from_arrays(tmp_path / "other.npz")
    with pytest.raises(DataError, match=r"other.npz: expected a .npy file"):
        from_arrays(tmp_path / "other.npz", LABELS)
    with pytest.raises(ValueError, match="labels: expected an array"):
        from_arrays(PIXELS)


class _Intruder:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return open, (self.mark, "w")


def test_a_pickled_array_is_never_unpickled(tmp_path):
    pickled = np.array([_Intruder(tmp_path / "mark")], dtype=object)
    np.save(tmp_path / "images.npy", pickled, allow_pickle=True)
    np.savez(tmp_path / "pets.npz", images=pickled, labels=LABELS)
    with pytest.raises(DataError, match=r"images.npy: expected"):
        from_arrays(tmp_path / "images.npy", LABELS)
    with pytest.raises(DataError, match=r"pets.npz: expected"):
        from_arrays(tmp_path / "pets.npz")
    assert not (tmp_path / "mark").exists()


def test_a_file_larger_than_memory_is_mapped_not_read(tmp_path):
    np.save(tmp_path / "images.npy", PIXELS.transpose(0, 3, 1, 2))
    found = from_arrays(tmp_path / "images.npy", LABELS)
    with (tmp_path / "images.npy").open("r+b") as stream:  # a change of the file shows, so it was not copied
        stream.seek(-1, 2)
        stream.write(bytes([255 - PIXELS[-1, -1, -1, -1]]))
    assert int(found.images[-1, -1, -1, -1]) == 255 - PIXELS[-1, -1, -1, -1]


def test_any_torch_dataset():
    class Pets(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return Image.fromarray(PIXELS[index]), LABELS[index]

    found = from_dataset(Pets(), ("cat", "dog"))
    assert np.array_equal(found.images.numpy(), PIXELS.transpose(0, 3, 1, 2))
    assert found.labels.tolist() == LABELS.tolist()


def test_datasets_that_are_refused():
    with pytest.raises(ValueError, match=r"dataset: expected images of \(1, 2, 2\) as item 0, got \(1, 3, 2\) at 1"):
        from_dataset([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 3, 2), 0)])
    with pytest.raises(ValueError, match="dataset: expected at least one item"):
        from_dataset([])
    for given, found in ((3, "int"), (iter([]), "list_iterator")):
        with pytest.raises(TypeError, match=rf"dataset: expected a Dataset with a length, .*, got {found}"):
            from_dataset(given)
    pair = torch.zeros(1, 2, 2), 0
    for items, found in (([1, 2], "int at 0"), ([pair, (*pair, 0)], "3 values at 1")):
        with pytest.raises(TypeError, match=rf"dataset: expected items \(image, label\), got {found}"):
            from_dataset(items)


@pytest.mark.parametrize("label", [1.5, "cat", None, torch.tensor([0, 1]), float("nan"), float("inf")])
def test_labels_of_a_dataset_that_are_no_classes_are_refused(label):
    """A fraction was cut off without a word."""
    with pytest.raises(ValueError, match=r"dataset: expected a whole number as label, got .* at 1"):
        from_dataset([(torch.zeros(1, 2, 2), 0), (torch.zeros(1, 2, 2), label)])


def header(shape):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "|u1", "fortran_order": False, "shape": shape})
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        header((10**12, 3, 4, 4)) + b"few",
        header((-1, 3, 4, 4)) + bytes(48),
        header((2, -1)),
        header((10**30,)),
        b"\x93NUMPY\x01\x00\xa0\x0f" + b"(" * 4000,
        b"\x93NUMPY\x01\x00\xa0\x0f" + b"[" * 4000,
    ],
)
def test_headers_that_promise_too_much_or_nest_too_deep(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("images.npy", content)
        archive.writestr("labels.npy", header((2,)) + bytes(2))
    with little_memory():
        with pytest.raises(DataError, match=r"a\.npy: expected a whole \.npy file"):
            from_arrays(tmp_path / "a.npy", LABELS)
        with pytest.raises(DataError, match=r"a\.npz: expected a whole \.npz file"):
            from_arrays(tmp_path / "a.npz")


def test_a_label_of_two_billion_is_refused_before_memory_is_taken(tmp_path):
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=np.array([0, 1, 2, 2_000_000_000]))
    for read in (from_arrays, from_path):
        with little_memory(), pytest.raises(DataError, match="expected labels 0 to 99999, found 0 to 2000000000"):
            read(tmp_path / "a.npz")


def test_a_folder_and_a_pipe_are_no_arrays(tmp_path):
    for suffix in ("npy", "npz"):
        (tmp_path / f"folder.{suffix}").mkdir()
        os.mkfifo(tmp_path / f"pipe.{suffix}")
        for name in ("folder", "pipe"):
            with pytest.raises(DataError, match=f"{name}.{suffix}: expected a file"):
                from_arrays(tmp_path / f"{name}.{suffix}", LABELS if suffix == "npy" else None)


def test_labels_as_a_list():
    assert from_arrays(PIXELS, [0, 1, 1, 0]).labels.tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match="expected 4 whole numbers as labels"):
        from_arrays(PIXELS, ["cat", "dog", "dog", "cat"])
