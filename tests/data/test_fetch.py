import errno
import hashlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from capsroute.data import DataError, DataFile, FetchError, fetch, load, registry
from capsroute.data.fetch import fetch_files

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
    return replace(registry.dataset_info("mnist"), name="fake", files=FILES, sources=sources)


def _everything(root: Path):
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


GOOD = ["fake", "fake/SHA256SUMS", "fake/a.bin", "fake/b.bin"]


def test_sources_are_tried_in_order_until_one_delivers_what_the_checksums_say(tmp_path):
    down = FakeSource("public address", error=FetchError("no route to host"))
    wrong = FakeSource("old mirror", CONTENTS | {"b.bin": b"beta" * 99 + b"bexa"})
    good, spare = FakeSource("registry", CONTENTS), FakeSource("spare", CONTENTS)
    assert fetch_files(_info(down, wrong, good, spare), tmp_path) == tmp_path / "fake"
    assert [source.asked for source in (down, wrong, good, spare)] == [1, 1, 1, 0]
    assert _everything(tmp_path) == GOOD
    assert (tmp_path / "fake" / "a.bin").read_bytes() == CONTENTS["a.bin"]


def test_when_no_source_delivers_the_error_lists_them_and_nothing_stays(tmp_path):
    sources = (
        FakeSource("public address", error=FetchError("no route to host")),
        FakeSource("old mirror", CONTENTS | {"b.bin": b"wrong"}),
        FakeSource("registry", {"a.bin": CONTENTS["a.bin"]}),
    )
    with pytest.raises(FetchError) as caught:
        fetch_files(_info(*sources), tmp_path)
    said = str(caught.value)
    assert f"your folder {tmp_path / 'fake'}: a.bin, b.bin not all there" in said
    assert "public address: no route to host" in said
    assert "old mirror: b.bin: expected 400 bytes, found 5" in said
    assert "registry: registry: expected the file b.bin, found ['a.bin']" in said
    assert "By hand: get a.bin, b.bin" in said
    assert "CAPSROUTE_DATA" in said
    assert _everything(tmp_path) == []


def test_an_interrupted_fetch_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        fetch_files(_info(FakeSource("slow", error=KeyboardInterrupt())), tmp_path)
    assert _everything(tmp_path) == []


def test_what_is_here_is_not_fetched(tmp_path):
    source = FakeSource("registry", CONTENTS)
    info = _info(source)
    fetch_files(info, tmp_path)
    assert fetch_files(info, tmp_path) == tmp_path / "fake"
    assert fetch_files(info, tmp_path / "fake") == tmp_path / "fake"  # the folder itself given as the root
    assert source.asked == 1


def test_a_set_of_which_one_file_is_missing_is_fetched_whole(tmp_path):
    source = FakeSource("registry", CONTENTS)
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
    info = _info(FakeSource("registry", CONTENTS))
    info = replace(info, read=lambda info, folder, split: (folder / "a.bin").read_bytes(), sizes={"train": 500})
    monkeypatch.setitem(registry._REGISTRY, "fake", info)
    with pytest.raises(ValueError, match="download: fake is not in"):
        load("fake", root=tmp_path, download=False)
    assert load("fake", root=tmp_path) == CONTENTS["a.bin"]
    assert load("fake", root=tmp_path, download=False) == CONTENTS["a.bin"]


def test_progress_is_reported(tmp_path):
    steps = []
    fetch_files(_info(FakeSource("registry", CONTENTS)), tmp_path, lambda *step: steps.append(step))
    assert steps == [("registry", 1, 2), ("verified a.bin", 500, 900), ("verified b.bin", 900, 900)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_full_or_read_only_cache_is_one_line_that_names_it(tmp_path, monkeypatch, code):
    def refuse(path, content):
        raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(sys.modules[fetch_files.__module__], "write_atomically", refuse)
    with pytest.raises(FetchError) as caught:
        fetch_files(_info(FakeSource("registry", CONTENTS)), tmp_path)
    said = str(caught.value)
    assert said.startswith(f"fake: it cannot be kept in {tmp_path} ({os.strerror(code)})")
    assert "CAPSROUTE_DATA" in said
    assert "\n" not in said


def test_a_cache_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(FetchError, match=r"fake: it cannot be kept in .*file/data \(Not a directory\)"):
        fetch_files(_info(FakeSource("registry", CONTENTS)), tmp_path / "file" / "data")
