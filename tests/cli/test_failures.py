"""What goes wrong with files, said in one line."""

import errno
import os

import pytest
import typer

from capsroute.cli.failures import explained
from capsroute.files import write_atomically


def said(capsys, error):
    with pytest.raises(typer.Exit) as ended, explained():
        raise error
    assert ended.value.exit_code == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "number", [errno.EACCES, errno.EROFS, errno.ENOENT, errno.ENAMETOOLONG, errno.ELOOP, errno.EIO]
)
def test_a_file_that_cannot_be_used_is_named(capsys, number):
    line = said(capsys, OSError(number, os.strerror(number), "a folder/file.csv"))
    assert line == f"a folder/file.csv: {os.strerror(number)}\n"


def test_a_full_disk_says_that_runs_go_on(capsys):
    line = said(capsys, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert line.startswith("the run folder: No space left on device. What was written before is intact")


def test_a_file_that_is_written_aside_is_not_known_by_that_name(capsys, tmp_path, monkeypatch):
    def refuse(path, *arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(typer.Exit), explained():
        write_atomically(tmp_path / "answers.csv", b"")
    assert capsys.readouterr().err == f"{tmp_path}: Permission denied\n"


def test_a_file_that_is_to_be_a_folder_is_known_by_its_own_name(capsys, tmp_path):
    with pytest.raises(typer.Exit), explained():
        write_atomically(tmp_path, b"")
    line = f"{tmp_path}: Is a directory. Nothing can be written there: name another place.\n"
    assert capsys.readouterr().err == line


def test_what_is_about_no_file_is_not_hidden():
    with pytest.raises(OSError, match="odd"), explained():
        raise OSError(errno.EINVAL, "odd")
