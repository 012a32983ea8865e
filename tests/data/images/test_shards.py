"""Shards: what is packed comes out again, here and in the library that the format is of."""

import io
import json
import os
import tarfile

import pytest
import torch
from typer.testing import CliRunner

from capsroute.cli.app import app
from capsroute.data import DataError, from_path
from capsroute.data.images.path import list_images
from capsroute.data.images.shards import pack
from tests.data.images.shapes import CLASSES, make_shapes, write


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp("own") / "shapes", 14)


@pytest.fixture(scope="module")
def shards(shapes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    pack(list_images(shapes), folder / "shapes", per_shard=20)
    return folder


def contents(listing, size=(12, 12)):
    """Every picture with the name of its class, in an order of their own."""
    rows = range(len(listing))
    return sorted((listing.classes[listing.labels[row]], listing.picture(row, size, 3).tobytes()) for row in rows)


@pytest.mark.parametrize("name", ["shapes-{0000..0002}.tar", "shapes-*.tar"])
def test_what_is_packed_comes_out_again(shapes, shards, name):
    found = list_images(shards / name)
    assert found.classes == CLASSES
    assert contents(found) == contents(list_images(shapes))
    assert found.facts().mixed
    assert from_path(shards / name, (8, 8))["train"].name == "shapes"


def test_every_shard_has_every_class(shards):
    for number in (0, 1):  # the third has two pictures only
        assert len(set(list_images(shards / f"shapes-000{number}.tar").labels.tolist())) == 3


def test_splits_are_kept(tmp_path):
    for split, count in (("train", 5), ("validation", 2), ("test", 3)):
        for kind in ("a", "b"):
            for number in range(count):
                write(tmp_path / "pets" / split / kind / f"{number}.png")
    [shard] = pack(list_images(tmp_path / "pets"), tmp_path / "pets")
    assert {split: len(images) for split, images in from_path(shard).items()} == {
        "train": 10,
        "validation": 4,
        "test": 6,
    }


def test_the_webdataset_library_reads_them(shards):
    webdataset = pytest.importorskip("webdataset")
    url = str(shards / "shapes-{0000..0002}.tar")
    read = list(webdataset.WebDataset(url, shardshuffle=False, empty_check=False).decode("pil"))
    assert len(read) == 42
    for sample in read:
        assert CLASSES[sample["cls"]] == sample["json"]["class"]
        assert sample.get("png", sample.get("jpg")).size[0] >= 20


def test_shards_of_the_webdataset_library_are_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    picture = torch.full((6, 5, 3), 0.5).numpy()
    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for number in range(8):
            writer.write({"__key__": f"folder/sample{number}", "png": picture, "cls": 9 + number % 2})
    sets = from_path(tmp_path / "theirs.tar")
    assert sets["train"].classes == ("9", "10")
    assert sets["train"].shape == (3, 6, 5)
    assert sum(map(len, sets.values())) == 8


def test_the_command_packs_and_says_how_to_read(shapes, tmp_path):
    done = CliRunner().invoke(app, ["data", "pack", str(shapes), str(tmp_path / "out" / "s"), "--per-shard", "30"])
    assert done.exit_code == 0, done.output
    name = done.output.split('"')[1]
    assert name == str(tmp_path / "out" / "s-{0000..0001}.tar")
    assert len(list_images(name)) == 42
    done = CliRunner().invoke(app, ["data", "pack", str(tmp_path / "none"), str(tmp_path / "t")])
    assert done.exit_code == 1
    assert "found nothing there" in done.output


def tar(members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            made.addfile(member, io.BytesIO(content))
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "damaged"),
        (b"not a tar file", "damaged"),
        (tar({}), "found none"),
        (tar({"a.png": b"picture"}), r"a\.png: expected a \.cls or a \.json"),
        (tar({"a.png": b"picture", "a.json": b"[" * 200_000}), r"a\.json: expected JSON"),
        (tar({"a.png": b"picture", "a.cls": b"1" * 2_000_000}), r"a\.cls: expected a label, found 2,000,000 bytes"),
    ],
)
def test_damaged_shards(tmp_path, content, complaint):
    (tmp_path / "bad.tar").write_bytes(content)
    with pytest.raises(DataError, match=complaint):
        list_images(tmp_path / "bad.tar")


def test_a_shard_that_is_cut_off_names_the_picture(tmp_path, shards):
    found = list_images(shards / "shapes-0000.tar")
    whole = (shards / "shapes-0000.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: int(found.spans[5, 1]) + 10])
    with pytest.raises(DataError, match=r"cut\.tar"):
        from_path(tmp_path / "cut.tar", (8, 8), strict=True)


def test_shards_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="expected shards, found none"):
        list_images(tmp_path / "none-*.tar")
    with pytest.raises(DataError, match=r"none-1\.tar: expected a file, found none"):
        list_images(tmp_path / "none-{1..3}.tar")
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(DataError, match=r"pipe\.tar: expected a file, found something else"):
        list_images(tmp_path / "pipe.tar")


def test_a_label_may_be_json_alone(tmp_path):
    members = {}
    for number, kind in enumerate(("cat", "dog")):
        members |= {f"{number}.jpg": b"", f"{number}.json": json.dumps({"class": kind, "split": "test"}).encode()}
    (tmp_path / "j.tar").write_bytes(tar(members))
    found = list_images(tmp_path / "j.tar")
    assert found.classes == ("cat", "dog")
    assert len(found.rows("test")) == 2
