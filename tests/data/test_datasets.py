import errno
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capsroute.data import DataError, DataFile, FetchError, dataset_info, datasets, fetch, list_datasets, load, register
from capsroute.data.datasets import fetch_files
from capsroute.data.sources import PublicAddress


@pytest.mark.parametrize("info", list_datasets(), ids=lambda info: info.name)
def test_every_entry_is_complete(info):
    assert set(info.sizes) == {"train", "validation", "test"}
    assert min(info.sizes.values()) > 0
    # Scenes are judged by their masks: what is in all of them alike is one class.
    assert len(set(info.classes)) == len(info.classes) >= (1 if "with masks" in info.title else 2)
    assert info.licence
    assert info.origin
    if info.needs:
        assert dataset_info(info.needs).files
        assert not info.files


@pytest.mark.parametrize("info", [info for info in list_datasets() if info.sources], ids=lambda info: info.name)
def test_nothing_is_fetched_without_a_checksum(info):
    every_file_is_checked = all(file.checksum for file in info.files)
    for source in info.sources:
        downloads = source.downloads if isinstance(source, PublicAddress) else ()
        assert every_file_is_checked or (downloads and all(download.checksum for download in downloads))


def test_one_entry_adds_a_data_set(monkeypatch):
    monkeypatch.setattr(datasets, "_REGISTRY", dict(datasets._REGISTRY))
    info = register(replace(dataset_info("digits"), name="my_digits"))
    assert info in list_datasets()
    assert len(load("my_digits", "test")) == 359
    with pytest.raises(ValueError, match="'my_digits' is registered already"):
        register(info)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"name: expected one of .* got 'minst'; did you mean 'mnist'"):
        load("minst")


def test_an_unknown_split_and_an_unknown_option_are_named():
    with pytest.raises(
        ValueError, match=r"split: expected one of train, validation, test, train.validation, got 'dev'"
    ):
        load("digits", "dev")
    with pytest.raises(ValueError, match="options: digits understands none, got 'size'"):
        load("digits", size=8)
    with pytest.raises(ValueError, match="options: multimnist understands count, seed, device, got 'n'"):
        load("multimnist", n=8)


def test_a_set_of_the_wrong_length_is_refused(tiny_mnist, monkeypatch):
    info = dataset_info("mnist")
    monkeypatch.setitem(datasets._REGISTRY, "mnist", replace(info, sizes=info.sizes | {"test": 61}))
    with pytest.raises(DataError, match="expected 61 entries in mnist test, found 60"):
        load("mnist", "test")
    assert len(load("mnist", "train")) == 162


def test_is_here_looks_for_what_it_is_made_from(tiny_mnist):
    assert dataset_info("multimnist").is_here()
    assert dataset_info("toynorb").is_here()
    assert not dataset_info("multimnist").is_here(tiny_mnist / "elsewhere")
    assert not dataset_info("svhn").is_here()


CONTENTS = {"a.bin": b"alpha" * 100, "b.bin": b"beta" * 100}
FILES = tuple(
    DataFile(name, len(content), "sha256:" + hashlib.sha256(content).hexdigest()) for name, content in CONTENTS.items()
)


class FakeSource:
    """A source that delivers `contents`, or raises."""

    def __init__(self, name, contents=None, error=None):
        self.name, self.contents, self.error, self.asked = name, contents, error, 0

    def describe(self):
        return self.name

    def collect(self, scratch, report):
        self.asked += 1
        (scratch / "half-written").write_bytes(b"half")
        report(self.name, 1, 2)
        if self.error:
            raise self.error
        return dict(self.contents)


def _info(*sources):
    return replace(datasets.dataset_info("mnist"), name="fake", files=FILES, sources=sources)


def _everything(root: Path):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


GOOD = ["fake", "fake/SHA256SUMS", "fake/a.bin", "fake/b.bin"]


def test_sources_are_tried_in_order_until_one_delivers_what_the_checksums_say(tmp_path):
    down = FakeSource("public address", error=FetchError("no route to host"))
    wrong = FakeSource("old mirror", CONTENTS | {"b.bin": b"beta" * 99 + b"bexa"})
    good, spare = FakeSource("datasets", CONTENTS), FakeSource("spare", CONTENTS)
    assert fetch_files(_info(down, wrong, good, spare), tmp_path) == tmp_path / "fake"
    assert [source.asked for source in (down, wrong, good, spare)] == [1, 1, 1, 0]
    assert _everything(tmp_path) == GOOD
    assert (tmp_path / "fake" / "a.bin").read_bytes() == CONTENTS["a.bin"]


def test_when_no_source_delivers_the_error_lists_them_and_nothing_stays(tmp_path):
    sources = (
        FakeSource("public address", error=FetchError("no route to host")),
        FakeSource("old mirror", CONTENTS | {"b.bin": b"wrong"}),
        FakeSource("datasets", {"a.bin": CONTENTS["a.bin"]}),
    )
    with pytest.raises(FetchError) as caught:
        fetch_files(_info(*sources), tmp_path)
    said = str(caught.value)
    assert f"your folder {tmp_path / 'fake'}: a.bin, b.bin not all there" in said
    assert "public address: no route to host" in said
    assert "old mirror: b.bin: expected 400 bytes, found 5" in said
    assert "datasets: datasets: expected the file b.bin, found ['a.bin']" in said
    assert "By hand: get a.bin, b.bin" in said
    assert "CAPSROUTE_DATA" in said
    assert _everything(tmp_path) == []


def test_an_interrupted_fetch_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fetch_files(_info(FakeSource("slow", error=KeyboardInterrupt())), tmp_path)
    assert _everything(tmp_path) == []


def test_what_is_here_is_not_fetched(tmp_path):
    source = FakeSource("datasets", CONTENTS)
    info = _info(source)
    fetch_files(info, tmp_path)
    assert fetch_files(info, tmp_path) == tmp_path / "fake"
    assert fetch_files(info, tmp_path / "fake") == tmp_path / "fake"  # the folder itself given as the root
    assert source.asked == 1


def test_a_set_of_which_one_file_is_missing_is_fetched_whole(tmp_path):
    source = FakeSource("datasets", CONTENTS)
    fetch_files(_info(source), tmp_path)
    (tmp_path / "fake" / "a.bin").unlink()
    fetch_files(_info(source), tmp_path)
    assert source.asked == 2
    assert _everything(tmp_path) == GOOD


def test_fetch_verifies_what_is_here_already(tiny_mnist):
    assert fetch("mnist") == tiny_mnist / "mnist"
    assert fetch("multimnist") == tiny_mnist / "mnist"
    labels = tiny_mnist / "mnist" / "t10k-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1] + b"\x03")
    with pytest.raises(DataError, match="t10k-labels-idx1-ubyte: expected sha256"):
        fetch("mnist")


def test_load_fetches_unless_forbidden(tmp_path, monkeypatch):
    info = _info(FakeSource("datasets", CONTENTS))
    info = replace(info, read=lambda info, folder, split: (folder / "a.bin").read_bytes(), sizes={"train": 500})
    monkeypatch.setitem(datasets._REGISTRY, "fake", info)
    with pytest.raises(ValueError, match="download: fake is not in"):
        load("fake", root=tmp_path, download=False)
    assert load("fake", root=tmp_path) == CONTENTS["a.bin"]
    assert load("fake", root=tmp_path, download=False) == CONTENTS["a.bin"]


def test_progress_is_reported(tmp_path):
    steps = []
    fetch_files(_info(FakeSource("datasets", CONTENTS)), tmp_path, lambda *step: steps.append(step))
    assert steps == [("datasets", 1, 2), ("verified a.bin", 500, 900), ("verified b.bin", 900, 900)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_cache_is_one_line_that_names_it(tmp_path, monkeypatch, code):
    def refuse(path, content):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(sys.modules[fetch_files.__module__], "write_atomically", refuse)
    with pytest.raises(FetchError) as caught:
        fetch_files(_info(FakeSource("datasets", CONTENTS)), tmp_path)
    said = str(caught.value)
    assert said.startswith(f"fake: it cannot be kept in {tmp_path} ({os.strerror(code)})")
    assert "CAPSROUTE_DATA" in said
    assert "\n" not in said


def test_a_cache_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FetchError, match=r"fake: it cannot be kept in .*file/data \(Not a directory\)"):
        fetch_files(_info(FakeSource("datasets", CONTENTS)), tmp_path / "file" / "data")
