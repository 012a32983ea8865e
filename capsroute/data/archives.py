"""Reading chosen members of tar and zip archives in memory; nothing is extracted to a path that an archive names."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import PureWindowsPath

from capsroute.data.errors import DataError
from capsroute.data.files import LARGEST_UNPACKED, gunzip

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
