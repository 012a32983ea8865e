"""A path to one's own images: what is found, how it is split, and what happens to bad files among good ones."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsroute.data import DataError, DataWarning, from_folder, from_path
from capsroute.data.images.path import list_images
from tests.data.images.shapes import CLASSES, make_shapes, write


@pytest.fixture
def pets(tmp_path):
    for number in range(10):
        write(tmp_path / "pets" / "cat" / f"{number}.png", (number, 0, 0), (6 + number, 4))
        write(tmp_path / "pets" / "dog" / f"{number}.png", (0, number, 0))
    return tmp_path / "pets"


def sizes(sets):
    return {split: len(images) for split, images in sets.items()}


def test_splits_are_cut_by_class_and_share_no_picture(tmp_path):
    sets = from_path(make_shapes(tmp_path / "shapes", 20), size=(16, 16))
    assert sizes(sets) == {"train": 42, "validation": 6, "test": 12}
    assert sets["test"].labels.bincount().tolist() == [4, 4, 4]
    assert sets["train"].classes == CLASSES
    seen = [{image.numpy().tobytes() for image in images.images} for images in sets.values()]
    assert len(set.union(*seen)) == sum(map(len, seen)) == 60


def test_names_that_are_not_utf_8_are_taken_of_pictures_and_refused_of_classes(pets):
    (pets / "cat" / "0.png").rename(pets / "cat" / os.fsdecode(b"caf\xe9.png"))
    assert len(from_path(pets, size=(4, 4))["train"].labels) == 14
    (pets / "cat").rename(pets / os.fsdecode(b"t\xeate"))
    with pytest.raises(DataError, match=r"pets: expected folders whose names are UTF-8, found b't\\xeate'"):
        from_path(pets, size=(4, 4))


def test_a_picture_that_may_not_be_read_is_left_out_as_others_are(pets, monkeypatch):
    opened = Path.open

    def refuse(path, *arguments, **options):
        if path.name == "3.png" and path.parent.name == "cat":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", refuse)  # file modes do not stop root, whom tests may run as
    assert list_images(pets).facts().mixed
    with pytest.warns(DataWarning, match=r"1 of 20 pictures .*3\.png: expected a file that can be read, .*Permission"):
        assert sum(sizes(from_path(pets, size=(4, 4))).values()) == 19


@pytest.mark.parametrize(
    ("links", "complaint"),
    [
        ({"cat/up": ".."}, "cat/up: expected a folder of pictures, found a link to .*pets, above it"),
        ({"again": "."}, "again/again: expected a folder of pictures, found a link to .*pets, above it"),
        ({"cat/x": "../dog", "dog/y": "../cat"}, "cat/x/y: expected a folder of pictures, found a link to .*pets/cat"),
        ({"cat/self": "self"}, r"cat/self: expected a file or a folder \(Too many levels"),
        ({"self": "self"}, r"pets/self: expected a file or a folder \(Too many levels"),
    ],
)
def test_links_without_an_end_are_refused(pets, links, complaint):
    for place, target in links.items():
        (pets / place).symlink_to(target)
    with pytest.raises(DataError, match=complaint):
        list_images(pets)


def test_links_to_other_folders_are_followed(pets, tmp_path):
    write(tmp_path / "more" / "tabby" / "1.png")
    (pets / "cat" / "more").symlink_to(tmp_path / "more")
    assert len(list_images(pets)) == 21


def held_out(path, seed):
    listing = list_images(path).cut(seed)[0]
    return {listing.files[row] for row in listing.rows("test")}


def test_the_cut_follows_from_names_and_seed(pets):
    before = held_out(pets, 0)
    assert before == held_out(pets, 0)
    assert before != held_out(pets, 1)
    write(pets / "cat" / "new.png")
    assert len(before - held_out(pets, 0)) <= 1  # a new picture moves one old one at most


def test_without_validation_its_pictures_are_trained_on(pets):
    assert sizes(from_path(pets, (4, 4), validation=False)) == {"train": 16, "test": 4}


def test_splits_that_are_there_are_kept(tmp_path):
    for split, count in (("train", 10), ("val", 2), ("test", 3)):
        for kind in ("a", "b"):
            for number in range(count):
                write(tmp_path / split / kind / f"{number}.png")
    sets = from_path(tmp_path)
    assert sizes(sets) == {"train": 20, "validation": 4, "test": 6}
    assert list_images(tmp_path).cut(0)[1] == ""


def test_only_what_is_missing_is_cut(tmp_path):
    for split in ("train", "test"):
        for kind in ("a", "b"):
            for number in range(10):
                write(tmp_path / split / kind / f"{number}.png")
    assert sizes(from_path(tmp_path)) == {"train": 18, "validation": 2, "test": 20}
    assert list_images(tmp_path).cut(0)[1] == "cut with seed 0: 2 for validation"


def test_a_class_may_be_called_train(tmp_path):
    for kind in ("train", "car"):
        for number in range(4):
            write(tmp_path / kind / f"{number}.png")
    assert from_path(tmp_path)["train"].classes == ("car", "train")


@pytest.mark.parametrize(
    ("folders", "found"),
    [(("train", "test", "extra"), "extra beside test, train"), (("val", "test"), "test, val alone")],
)
def test_splits_that_could_be_classes_are_asked_about(tmp_path, folders, found):
    for folder in folders:
        for kind in ("a", "b"):
            write(tmp_path / folder / kind / "1.png")
    with pytest.raises(DataError, match=rf"expected class folders, or train/.* found {found}"):
        from_path(tmp_path)


def test_a_class_that_only_the_test_folder_has(tmp_path):
    for kind in ("train/a", "train/b", "test/a", "test/c"):
        write(tmp_path / kind / "1.png")
    with pytest.raises(DataError, match="c: expected a class that is in train/ too: a, b"):
        from_path(tmp_path)


def test_one_class_is_none(tmp_path):
    write(tmp_path / "cat" / "1.png")
    with pytest.raises(DataError, match="expected at least two classes, found only cat"):
        from_path(tmp_path)


def test_an_empty_class_is_named(pets):
    (pets / "eel").mkdir()
    with pytest.raises(DataError, match="eel: expected at least one picture"):
        from_path(pets)


def test_nothing_there(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    for name, found in (("nowhere", "nothing there"), ("notes.txt", "something else")):
        with pytest.raises(DataError, match=rf"{name}: expected a folder of class folders, .*; found {found}"):
            from_path(tmp_path / name)
    with pytest.raises(DataError, match="one folder a class, found none"):
        from_path(tmp_path)


def test_bad_files_among_good_ones_are_left_out_and_counted(pets):
    (pets / "cat" / "bad.png").write_bytes(b"not a picture")
    (pets / "cat" / "folder.png").mkdir()
    os.mkfifo(pets / "dog" / "pipe.jpg")
    with pytest.warns(DataWarning, match=r"3 of 23 pictures are left out: .*bad\.png: expected a picture"):
        sets = from_path(pets, (4, 4))
    found = [
        (images.classes[label], *image[:2, 0, 0].tolist())
        for images in sets.values()
        for image, label in zip(images.images, images.labels)
    ]
    assert sorted(found) == sorted([*(("cat", n, 0) for n in range(10)), *(("dog", 0, n) for n in range(10))])
    with pytest.raises(DataError, match=r"(bad|folder)\.png|pipe\.jpg"):
        from_path(pets, (4, 4), strict=True)


def test_a_class_of_bad_files_only(pets):
    for number in range(10):
        (pets / "cat" / f"{number}.png").write_bytes(b"")
    with pytest.warns(DataWarning), pytest.raises(DataError, match="of every class to train on, found none of 'cat'"):
        from_path(pets, (4, 4))


def test_grey_pictures_have_one_channel_and_one_colour_makes_three(tmp_path):
    for kind in ("a", "b"):
        for number in range(3):
            write(tmp_path / kind / f"{number}.png")
            Image.new("L", (5, 5), 7).save(tmp_path / kind / f"{number}.png")
    assert from_path(tmp_path)["train"].shape == (1, 5, 5)
    write(tmp_path / "a" / "colour.png", size=(5, 5))
    assert from_path(tmp_path)["train"].shape == (3, 5, 5)


def test_mixed_sizes_need_a_size(pets):
    with pytest.raises(DataError, match="expected images of one size, found several"):
        from_path(pets)
    assert from_folder(pets, size=(3, 2)).shape == (3, 3, 2)


def test_table_of_paths_and_labels(tmp_path):
    for number in range(6):
        write(tmp_path / "pictures" / f"müde katze {number}.png")
    lines = [f"pictures/müde katze {number}.png,{10 * (number % 2)}" for number in range(6)]
    (tmp_path / "table.csv").write_text("path,label\n" + "\n".join(lines), encoding="utf-8-sig")
    sets = from_path(tmp_path / "table.csv")
    assert sizes(sets) == {"train": 4, "test": 2}
    assert sets["train"].classes == ("0", "10")
    splits = ["train", "train", "validation", "validation", "test", "test"]
    (tmp_path / "table.csv").write_text("\n".join(f"{line},{split}" for line, split in zip(lines, splits)))
    held = list_images(tmp_path / "table.csv")
    assert [held.files[row][-5] for row in held.rows("test")] == ["4", "5"]


def test_numbers_as_classes_are_in_their_order(tmp_path):
    (tmp_path / "t.csv").write_text("".join(f"{number}.png,{number}\n" for number in (10, 9, 2)))
    assert list_images(tmp_path / "t.csv").classes == ("2", "9", "10")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "expected lines of path,label, found none"),
        (b"path,label\n", "expected lines of path,label, found none"),
        (b"a.png\n", "found \\['a.png'\\] as entry 1"),
        (b"a.png,1,holdout\n", "expected the split train, validation, test in entry 1, found 'holdout'"),
        (b"a.png,1\nb.png, \n", "expected a path and a label, found \\['b.png', ' '\\] as entry 2"),
        (b"file,kind\na.png,1\n", "expected the heading path,label .*, found \\['file', 'kind'\\]"),
        (b"label,path\n1,a.png\n", "expected the heading path,label .*, found \\['label', 'path'\\]"),
        (b"a.png,1\n\xff,2\n", "expected a CSV file"),
        (b'"' + b"x" * 200_000, "expected a CSV file"),
        (b"a.png,1\nb.png,2\n./a.png,2\n", "expected one label a picture, found '1' and '2' for './a.png'"),
        (
            b"a.png,1,test\nb.png,2,train\na.png,1,train\n",
            "expected training pictures in train alone, found 'a.png' elsewhere too",
        ),
    ],
)
def test_tables_that_are_none(tmp_path, content, complaint):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        list_images(tmp_path / "t.csv")


@pytest.mark.parametrize("again", ["{}.png", "./{}.png", "{folder}/{}.png"])
def test_a_picture_that_a_table_lists_twice_is_on_one_side_of_the_cut(tmp_path, again):
    twice = [f"{{}}.png,a\n{again},a\n".format(n, n, folder=tmp_path) for n in range(23)]
    (tmp_path / "t.csv").write_text("".join(twice) + "".join(f"{n}.png,b\n" for n in range(23, 28)))
    for seed in range(10):
        listing = list_images(tmp_path / "t.csv").cut(seed)[0]
        seen = [{listing.files[row] for row in listing.rows(part)} for part in ("train", "validation", "test")]
        assert len(listing) == 51
        assert len(set.union(*seen)) == sum(map(len, seen)) == 28
        assert [len(names) for names in seen] == [19, 3, 6]


def touch(*files):
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_a_picture_that_a_folder_has_twice_is_on_one_side_of_the_cut(tmp_path):
    """Through links to pictures, to links and to folders."""
    for name in "ab":
        folder, store = tmp_path / "in" / name, tmp_path / "store" / name
        touch(*(folder / f"{n}.png" for n in range(10)), *(store / f"{n}.png" for n in range(10, 15)))
        (folder / "more").symlink_to(store)
        for n in range(10, 15):
            (folder / f"{n}.png").symlink_to(store / f"{n}.png")
            (folder / f"{n}-again.png").symlink_to(f"{n}.png")
    for seed in range(10):
        listing = list_images(tmp_path / "in").cut(seed)[0]
        parts = ("train", "validation", "test")
        seen = [{(tmp_path / "in" / listing.files[row]).resolve() for row in listing.rows(part)} for part in parts]
        assert len(listing) == 50
        assert [len(found) for found in seen] == [22, 2, 6]
        assert len(set.union(*seen)) == 30


@pytest.mark.parametrize(
    ("link", "complaint"),
    [
        ("test/a/9.png", r"expected training pictures in train alone, found '[^']*' elsewhere too"),
        ("train/b/9.png", "expected one label a picture, found 'a' and 'b' for"),
    ],
)
def test_a_link_to_a_picture_elsewhere_is_named(tmp_path, link, complaint):
    touch(*(tmp_path / split / name / f"{n}.png" for split in ("train", "test") for name in "ab" for n in range(3)))
    (tmp_path / link).symlink_to(tmp_path / "train" / "a" / "0.png")
    with pytest.raises(DataError, match=complaint):
        list_images(tmp_path)


def test_npz_with_and_without_splits(tmp_path):
    images, labels = np.zeros((20, 5, 5, 3), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "one.npz", images=images, labels=labels, classes=np.array(["cat", "dog"]))
    sets = from_path(tmp_path / "one.npz")
    assert sizes(sets) == {"train": 14, "validation": 2, "test": 4}
    assert sets["test"].classes == ("cat", "dog")
    parts = {"train_images": images, "train_labels": labels[:, None], "test_images": images, "test_labels": labels}
    np.savez(tmp_path / "two.npz", **parts)
    assert sizes(from_path(tmp_path / "two.npz")) == {"train": 18, "validation": 2, "test": 20}
    assert from_path(tmp_path / "two.npz", (8, 4))["train"].shape == (3, 8, 4)
    np.savez(tmp_path / "odd.npz", pictures=images)
    with pytest.raises(DataError, match="expected the arrays 'images' and 'labels', or 'train_images'"):
        from_path(tmp_path / "odd.npz")


@pytest.mark.parametrize(("stored", "asked"), [("L", 3), ("RGB", 1)])
def test_arrays_become_grey_or_colour_as_files_do(tmp_path, stored, asked):
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (5, 6, 3), dtype=np.uint8)).convert(stored) for _ in range(6)]
    for number, picture in enumerate(pictures):
        (tmp_path / "files" / f"{number % 2}").mkdir(parents=True, exist_ok=True)
        picture.save(tmp_path / "files" / f"{number % 2}" / f"{number}.png")
    np.savez(tmp_path / "a.npz", images=np.stack(pictures), labels=np.arange(6) % 2)
    for size in ((5, 6), (8, 8)):
        files, arrays = (list_images(tmp_path / name) for name in ("files", "a.npz"))
        for row, file in enumerate(files.files):
            number = int(file.split("/")[-1][:-4])
            assert np.array_equal(files.picture(row, size, asked), arrays.picture(number, size, asked))
