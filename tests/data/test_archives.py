import io
import tarfile

import pytest

from capsroute.data import DataError
from capsroute.data.archives import read_members
from tests.data import writers

MEMBERS = {"package/data/a": b"one", "package/b": b"two"}


@pytest.mark.parametrize("archive", [writers.tar(MEMBERS), writers.tar(MEMBERS, "w"), writers.zip_(MEMBERS)])
def test_only_what_is_asked_for(archive):
    assert read_members(archive, ["package/b"], "x") == {"package/b": b"two"}


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "..\\evil", "C:/evil"])
@pytest.mark.parametrize("write", [writers.tar, writers.zip_])
def test_a_path_that_escapes_its_archive(write, name):
    archive = write(MEMBERS | {name: b"three"})
    with pytest.raises(DataError, match=r"x.tgz: expected members inside the archive, found the path") as caught:
        read_members(archive, ["package/b"], "x.tgz")
    assert "evil" in str(caught.value)


def test_a_missing_member_is_named_and_the_others_are_listed():
    with pytest.raises(DataError, match=r"x.tgz: expected the member 'c', found package/data/a, package/b"):
        read_members(writers.tar(MEMBERS), ["c"], "x.tgz")


def test_a_link_is_not_a_file():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(DataError, match="expected the member 'a'"):
        read_members(stream.getvalue(), ["a"], "x.tar")


@pytest.mark.parametrize("archive", [b"", b"hello" * 200])
def test_not_an_archive(archive):
    with pytest.raises(DataError, match=r"x\.tar"):
        read_members(archive, ["a"], "x.tar")
