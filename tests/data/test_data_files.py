import hashlib
import random
import zlib

import pytest

from capsroute.data import DataError, DataFile, data_root
from capsroute.data.data_files import find_folder, read_file, record_checksums
from tests.data import writers
from tests.data.memory import little_memory

CONTENT = bytes(range(256)) * 4
CHECKED = DataFile("a.bin", len(CONTENT), "sha256:" + hashlib.sha256(CONTENT).hexdigest())


def test_root_is_the_argument_then_the_environment_then_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "mine"))
    assert str(data_root("here")) == "here"
    assert data_root() == tmp_path / "mine"
    monkeypatch.delenv("CAPSROUTE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "capsroute" in str(data_root())


@pytest.mark.parametrize("place", ["root/name", "root"])
@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_is_found_in_either_folder_plain_or_compressed(tmp_path, place, compressed):
    folder = tmp_path / "set" if place == "root/name" else tmp_path
    folder.mkdir(exist_ok=True)
    assert find_folder(tmp_path, "set", (CHECKED,)) is None
    if compressed:
        (folder / "a.bin.gz").write_bytes(writers.gz(CONTENT))
    else:
        (folder / "a.bin").write_bytes(CONTENT)
    assert find_folder(tmp_path, "set", (CHECKED,)) == folder
    assert read_file(folder, CHECKED) == CONTENT


def test_any_flipped_bit_and_any_lost_byte_is_noticed(tmp_path):
    pick = random.Random(0)
    for _ in range(200):
        damaged = bytearray(CONTENT)
        damaged[pick.randrange(len(CONTENT))] ^= 1 << pick.randrange(8)
        (tmp_path / "a.bin").write_bytes(damaged)
        with pytest.raises(DataError, match=r"a.bin: expected sha256 .* found") as caught:
            read_file(tmp_path, CHECKED)
        assert "fetch it again" in str(caught.value)
        (tmp_path / "a.bin").write_bytes(CONTENT[: pick.randrange(len(CONTENT))])
        with pytest.raises(DataError, match=r"a.bin: expected 1024 bytes, found"):
            read_file(tmp_path, CHECKED)


def test_a_file_without_a_published_checksum_is_compared_with_the_recorded_one(tmp_path):
    unpublished = DataFile("a.bin")
    (tmp_path / "a.bin").write_bytes(CONTENT)
    record_checksums(tmp_path, {"a.bin": CONTENT})
    assert read_file(tmp_path, unpublished) == CONTENT
    (tmp_path / "a.bin").write_bytes(CONTENT[:-1] + b"x")
    with pytest.raises(DataError, match="expected sha256"):
        read_file(tmp_path, unpublished)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"a.bin: expected a file, found none"):
        read_file(tmp_path, CHECKED)


def test_a_gzip_bomb_is_unpacked_to_the_known_size_and_no_further(tmp_path):
    bomb = zlib.compressobj(wbits=31)
    (tmp_path / "a.bin.gz").write_bytes(b"".join(bomb.compress(bytes(2**20)) for _ in range(256)) + bomb.flush())
    with little_memory(), pytest.raises(DataError, match=r"a\.bin\.gz: expected 1024 bytes unpacked, found more"):
        read_file(tmp_path, CHECKED)


def test_a_file_of_another_size_is_not_read(tmp_path):
    with (tmp_path / "a.bin").open("wb") as stream:
        stream.truncate(2**30)  # a hole: it takes no room on the disk
    with little_memory(), pytest.raises(DataError, match="expected 1024 bytes, found 1073741824"):
        read_file(tmp_path, CHECKED)
