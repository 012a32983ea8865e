"""Files that are there whole or not at all."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from capsroute.files import write_atomically, writing_atomically

ROOT = Path(__file__).parents[1]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_threads_that_write_one_file_do_not_meet(tmp_path):
    contents = [bytes([number]) * 200_000 for number in range(4)]
    failed = []

    def write(content):
        try:
            for _ in range(5):
                write_atomically(tmp_path / "a.bin", content)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert (tmp_path / "a.bin").read_bytes() in contents
    assert names(tmp_path) == ["a.bin"]


def test_planted_link_is_not_followed(tmp_path, monkeypatch):
    """Whoever guesses the name aside and puts a link there must not have us write through it."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    tokens = iter(["guessed", "other"])
    monkeypatch.setattr("capsroute.files.secrets.token_hex", lambda size: next(tokens))
    (tmp_path / ".a.bin.guessed.partial").symlink_to(victim)
    (tmp_path / f".a.bin.{os.getpid()}.partial").symlink_to(victim)
    write_atomically(tmp_path / "a.bin", b"new")
    assert victim.read_bytes() == b"precious"
    assert (tmp_path / "a.bin").read_bytes() == b"new"
    assert not (tmp_path / "a.bin").is_symlink()


def leave(folder, name, age=3600.0):
    path = folder / name
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_leftovers_of_dead_writers_are_removed_and_others_are_not(tmp_path):
    dead = leave(tmp_path, ".a.bin.0123456789abcdef.partial")
    young = leave(tmp_path, ".a.bin.fedcba9876543210.partial", age=5.0)
    foreign = leave(tmp_path, ".b.bin.0123456789abcdef.partial")
    with writing_atomically(tmp_path / "a.bin") as stream:
        stream.write(b"slow writer")
        [living] = [path for path in tmp_path.glob(".a.bin.*") if path not in (dead, young)]
        os.utime(living, (0, 0))
        write_atomically(tmp_path / "a.bin", b"quick writer")
        assert living.exists()
    assert not dead.exists()
    assert young.exists()
    assert foreign.exists()
    assert (tmp_path / "a.bin").read_bytes() == b"slow writer"


def test_name_with_signs_of_a_pattern_is_taken_as_it_is(tmp_path):
    other = leave(tmp_path, ".run-1.json.0123456789abcdef.partial")
    own = leave(tmp_path, ".run-[12].json.0123456789abcdef.partial")
    write_atomically(tmp_path / "run-[12].json", b"{}")
    assert other.exists()
    assert not own.exists()


def test_file_and_folder_are_flushed_to_the_disk(tmp_path, monkeypatch):
    flushed = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (flushed.append(os.fstat(handle).st_ino), fsync(handle)))
    write_atomically(tmp_path / "a.bin", b"new")
    assert flushed == [(tmp_path / "a.bin").stat().st_ino, tmp_path.stat().st_ino]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    write_atomically(tmp_path / "a.bin", b"old")

    def full_disk(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, step, full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(tmp_path / "a.bin", b"new")
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_writer_that_fails_half_way_leaves_the_old_file(tmp_path):
    write_atomically(tmp_path / "a.bin", b"old")

    def fail_half_way():
        with writing_atomically(tmp_path / "a.bin") as stream:
            stream.write(b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert (tmp_path / "a.bin").read_bytes() == b"old"
    assert names(tmp_path) == ["a.bin"]


def test_permissions_are_those_that_the_user_asks_for(tmp_path):
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a.bin", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "a.bin").stat().st_mode & 0o777 == 0o640


def test_importing_models_loads_no_other_room():
    """Models are used without data, training and analysis: a server should not pay for them."""
    code = "import sys, capsroute as cr; cr.models; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = [name for name in done.stdout.split() if name.startswith("capsroute.")]
    rooms = {name.split(".")[1] for name in loaded}
    assert "models" in rooms
    assert not rooms & {"data", "training", "analysis", "explorer", "cli"}
