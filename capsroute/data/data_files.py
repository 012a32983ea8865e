"""The root folder of all data sets, and reading a file of a data set whole: right name, right size, right checksum."""

import gzip
import hashlib
import io
import os
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

from capsroute.data.errors import DataError
from capsroute.files import write_atomically

CHECKSUMS = "SHA256SUMS"
LARGEST_UNPACKED = 2**31  # bytes, of a compressed file whose size nobody told us


@dataclass(frozen=True)
class DataFile:
    """One file of a data set in its original format; size and `algorithm:hex` checksum where they are known."""

    name: str
    size: int | None = None
    checksum: str | None = None


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """The folder that holds one folder per data set: `root`, else `CAPSROUTE_DATA`, else the platform's cache folder.

    Example:
        >>> import capsroute as cr
        >>> str(cr.data.data_root("pictures"))
        'pictures'
    """
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("CAPSROUTE_DATA"):
        return Path(os.environ["CAPSROUTE_DATA"]).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("capsroute")) / "data"


def find_folder(root: Path, name: str, files: tuple[DataFile, ...]) -> Path | None:
    """The folder that has all `files`: `root/name`, or `root` itself; None when neither has."""
    for folder in (root / name, root):
        if all(locate(folder, file) for file in files):
            return folder
    return None


def locate(folder: Path, file: DataFile) -> Path | None:
    """The path of `file` in `folder`, plain or compressed with gzip; None when it is not there."""
    plain = folder / file.name
    return next((path for path in (plain, plain.with_name(plain.name + ".gz")) if path.is_file()), None)


def read_file(folder: Path, file: DataFile) -> bytes:
    """The content of `file`, verified against its size and checksum."""
    path = locate(folder, file)
    if path is None:
        raise DataError(f"{folder / file.name}: expected a file, found none")
    if path == folder / file.name and file.size is not None and path.stat().st_size != file.size:
        raise DataError(f"{path}: expected {file.size} bytes, found {path.stat().st_size}")
    content = path.read_bytes()
    if path != folder / file.name:
        content = gunzip(content, path, file.size)
    verify(content, file if file.checksum else replace(file, checksum=_recorded_checksum(folder, file)), path)
    return content


def record_checksums(folder: Path, contents: dict[str, bytes]) -> None:
    """Write down what was fetched and verified, in the form that `sha256sum --check` reads.

    It protects files whose own checksum nobody published: `read_file` compares with it.
    """
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}" for name, content in sorted(contents.items())]
    write_atomically(folder / CHECKSUMS, ("\n".join(lines) + "\n").encode())


def _recorded_checksum(folder: Path, file: DataFile) -> str | None:
    path = folder / CHECKSUMS
    lines = path.read_text(errors="replace").splitlines() if path.is_file() else []
    return next((f"sha256:{line[:64]}" for line in lines if line[64:] == f"  {file.name}"), None)


def verify(content: bytes, file: DataFile, path: Path) -> None:
    """Raise DataError unless `content`, found at `path`, has the size and the checksum of `file`."""
    if file.size is not None and len(content) != file.size:
        raise DataError(f"{path}: expected {file.size} bytes, found {len(content)}")
    if file.checksum is None:
        return
    algorithm, expected = file.checksum.split(":")
    found = hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()
    if found != expected:
        raise DataError(f"{path}: expected {algorithm} {expected}, found {found}; delete the file and fetch it again")


def gunzip(content: bytes, path: Path | str, size: int | None = None) -> bytes:
    """`content` decompressed; `path` is named when it is damaged. No more than `size` bytes and one are unpacked."""
    most = LARGEST_UNPACKED if size is None else size
    try:
        if not content:
            raise EOFError("it is empty")
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as stream:
            unpacked = stream.read(most + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path}: expected a whole gzip file, found a damaged one ({error})") from None
    if len(unpacked) > most:
        raise DataError(f"{path}: expected {most} bytes unpacked{' at most' * (size is None)}, found more")
    return unpacked
