"""Reading chosen members of tar and zip archives in memory; nothing is extracted to a path that an archive names."""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import PurePosixPath

from capsroute.data.errors import DataError

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, OSError, zlib.error, lzma.LZMAError, NotImplementedError)


def read_members(archive: bytes, members: Iterable[str], name: str) -> dict[str, bytes]:
    """The content of `members`, by their names in `archive`: a zip, or a tar plain or compressed.

    An archive that is damaged, lacks a member, or holds any path that leads outside of it is refused whole.
    `name` is what the error calls it.
    """
    wanted = list(members)
    read = _read_zip if zipfile.is_zipfile(io.BytesIO(archive)) else _read_tar
    try:
        contents, names = read(archive, wanted, name)
    except DAMAGE as error:
        raise DataError(f"{name}: expected a whole tar or zip archive, found a damaged one ({error})") from None
    for member in wanted:
        if member not in contents:
            raise DataError(f"{name}: expected the member {member!r}, found {', '.join(names[:12]) or 'none at all'}")
    return contents


def _read_tar(archive: bytes, wanted: list[str], name: str) -> tuple[dict[str, bytes], list[str]]:
    contents, names = {}, []
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
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
        return {member: file.read(member) for member in wanted if member in names}, names


def _refuse_escape(member: str, name: str) -> None:
    path = PurePosixPath(member.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[:1]:
        raise DataError(f"{name}: expected members inside the archive, found the path {member!r} that leads outside")
