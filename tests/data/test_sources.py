"""Sources against a local web server, and against stand-ins for the npm and apt clients on the PATH."""

import hashlib
import io
import subprocess
import tarfile
import threading
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from capsroute.data import DataError, FetchError, sources
from capsroute.data.sources import DebianPackage, Download, NpmPackage, PublicAddress, read_members
from tests.data import writers

ARCHIVE = writers.tar({"set/a.bin": b"alpha", "set/readme": b"hello"})


def _quiet(text, done, total):
    pass


class _Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def server(tmp_path):
    """A folder and the address it is served at."""
    folder = tmp_path / "served"
    folder.mkdir()
    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, directory=str(folder)))
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{serving.server_address[1]}"
    serving.shutdown()
    serving.server_close()


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def test_public_address_unpacks_gzip_archives_and_plain_files(server, scratch):
    folder, address = server
    (folder / "b.bin.gz").write_bytes(writers.gz(b"beta"))
    (folder / "set.tar.gz").write_bytes(ARCHIVE)
    (folder / "c.mat").write_bytes(b"gamma")
    source = PublicAddress(
        (
            Download(f"{address}/b.bin.gz"),
            Download(f"{address}/set.tar.gz", "md5:" + hashlib.md5(ARCHIVE).hexdigest(), {"set/a.bin": "a.bin"}),
            Download(f"{address}/c.mat"),
        )
    )
    steps = []
    assert source.collect(scratch, lambda *step: steps.append(step)) == {
        "a.bin": b"alpha",
        "b.bin": b"beta",
        "c.mat": b"gamma",
    }
    assert (f"{address}/c.mat", 5, 5) in steps
    assert source.describe() == f"{address}/"


def test_a_download_with_the_wrong_checksum(server, scratch):
    folder, address = server
    (folder / "set.tar.gz").write_bytes(ARCHIVE[:-1] + b"x")
    download = Download(f"{address}/set.tar.gz", "md5:" + hashlib.md5(ARCHIVE).hexdigest(), {"set/a.bin": "a.bin"})
    with pytest.raises(DataError, match=r"set.tar.gz: MD5 hash of downloaded file"):
        PublicAddress((download,)).collect(scratch, _quiet)


def test_an_address_that_is_gone(server, scratch):
    _, address = server
    with pytest.raises(FetchError, match="HTTPError: 404"):
        PublicAddress((Download(f"{address}/gone.gz"),)).collect(scratch, _quiet)


def test_no_network(scratch):
    with pytest.raises(FetchError, match="ConnectionError"):
        PublicAddress((Download("http://127.0.0.1:9/a.gz"),)).collect(scratch, _quiet)


def _client(tmp_path, monkeypatch, name, script):
    """Put a shell script called `name` first on the PATH."""
    folder = tmp_path / "clients"
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n" + script)
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_a_client_that_hangs_is_ended_and_its_words_are_shown(tmp_path, scratch, monkeypatch):
    monkeypatch.setattr(sources, "CLIENT_TIMEOUT", 0.1)
    _client(tmp_path, monkeypatch, "npm", "echo 'waiting for the registry' >&2; sleep 3600")
    heard, wait = threading.Event(), subprocess.Popen.wait

    def wait_once_heard(client, timeout=None):  # however long a client takes to start
        assert heard.wait(60)
        return wait(client, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", wait_once_heard)
    began = time.monotonic()
    with pytest.raises(FetchError, match=r"took longer than 0\.1 seconds: waiting for the registry"):
        NpmPackage("numbers", "1.2.3", {}).collect(
            scratch, lambda text, done, total: text == "waiting for the registry" and heard.set()
        )
    assert time.monotonic() - began < 600  # of the hour that it sleeps


def test_npm_package(tmp_path, scratch, monkeypatch):
    (tmp_path / "pack.tgz").write_bytes(writers.tar({"package/a.bin": b"alpha"}))
    script = f'[ "$1 $2" = "pack numbers@1.2.3" ] && cp {tmp_path}/pack.tgz numbers-1.2.3.tgz'
    _client(tmp_path, monkeypatch, "npm", script)
    source = NpmPackage("numbers", "1.2.3", {"package/a.bin": "a"}, convert=lambda found: {"A": found["a"] * 2})
    assert source.collect(scratch, _quiet) == {"A": b"alphaalpha"}
    assert source.describe() == "npm package numbers 1.2.3"


def test_a_client_that_fails_is_quoted(tmp_path, scratch, monkeypatch):
    _client(tmp_path, monkeypatch, "npm", "echo >&2; echo 'npm error 404 not found' >&2; exit 1")
    with pytest.raises(FetchError, match=r"'npm pack numbers@1.2.3' failed: npm error 404 not found"):
        NpmPackage("numbers", "1.2.3", {}).collect(scratch, _quiet)


def test_a_client_that_leaves_nothing(tmp_path, scratch, monkeypatch):
    _client(tmp_path, monkeypatch, "npm", "exit 0")
    with pytest.raises(FetchError, match=r"leave one \*.tgz, found \[\]"):
        NpmPackage("numbers", "1.2.3", {}).collect(scratch, _quiet)


def test_a_client_that_is_not_installed(scratch, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FetchError, match="the client 'npm' is not installed"):
        NpmPackage("numbers", "1.2.3", {}).collect(scratch, _quiet)
    with pytest.raises(FetchError, match="the client 'apt-get' is not installed"):
        DebianPackage("numbers", {}).collect(scratch, _quiet)


@pytest.mark.parametrize("lists", ["fresh", "missing"])
def test_debian_package_is_opened_without_installing_it(tmp_path, scratch, monkeypatch, lists):
    (tmp_path / "data.tar").write_bytes(writers.tar({"./usr/a.gz": writers.gz(b"alpha")}, "w"))
    # Without package lists, `download` fails until `update` has filled lists in a folder of our own.
    apt = """
for last; do :; done
case "$*" in
  *update*) mkdir -p lists && touch lists/updated ;;
  *download*) [ "$LISTS" = fresh ] || [ -f lists/updated ] || exit 100; touch "${last}_1.0_all.deb" ;;
esac
"""
    _client(tmp_path, monkeypatch, "apt-get", apt)
    _client(tmp_path, monkeypatch, "dpkg-deb", f'[ "$1" = --fsys-tarfile ] && cat {tmp_path}/data.tar')
    monkeypatch.setenv("LISTS", lists)
    assert DebianPackage("numbers", {"./usr/a.gz": "a"}).collect(scratch, _quiet) == {"a": b"alpha"}


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
