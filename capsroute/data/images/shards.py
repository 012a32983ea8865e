"""Images in tar files, as the WebDataset library reads them: `key.png` beside `key.cls`, the label's number, and
`key.json` with the name of the class and the split.

A tar file can be read from anywhere in it, so its members are listed once and then are pictures like others: batches,
their order and their shares do not depend on how many files there are.
"""

import io
import json
import os
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsroute.data.errors import DataError
from capsroute.data.images.listing import NAMES, PARTS, UNSAID, Listing, natural_order
from capsroute.data.images.pictures import LARGEST_FILE, SUFFIXES, check_file, decode_picture, inspect_picture
from capsroute.data.seeding import splitmix64
from capsroute.files import writing_atomically

PER_SHARD = 1000  # pictures
LARGEST_NOTE = 2**20  # bytes of a label
RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True, eq=False)
class ShardListing(Listing):
    """Pictures in tar files. `spans` is int64 `[n, 3]`: which file of `shards`, where in it, how many bytes."""

    shards: tuple[Path, ...]
    spans: np.ndarray

    def name(self, row: int) -> str:
        return f"{self.shards[self.spans[row, 0]]}, {self.files[row]}"

    def picture(self, row: int, size: tuple[int, int] | None, channels: int) -> np.ndarray:
        return decode_picture(self._read(row), self.name(row), size, channels)

    def inspect(self, row: int) -> tuple[int, int, int]:
        return inspect_picture(io.BytesIO(self._read(row)), self.name(row))

    def fingerprint(self) -> str:
        facts = [(str(shard), shard.stat().st_size, shard.stat().st_mtime_ns) for shard in self.shards]
        return repr((facts, self.classes))

    def _read(self, row: int) -> bytes:
        shard, offset, size = self.spans[row].tolist()
        if size > LARGEST_FILE:
            raise DataError(f"{self.name(row)}: expected at most {LARGEST_FILE:,} bytes, found {size:,}")
        try:
            with self.shards[shard].open("rb") as stream:
                stream.seek(offset)
                content = stream.read(size)
        except OSError as error:
            raise DataError(f"{self.name(row)}: expected a file that can be read ({error.strerror})") from None
        if len(content) != size:
            raise DataError(f"{self.name(row)}: expected {size} bytes, found {len(content)}: the shard is cut off")
        return content


def is_shards(path: str | os.PathLike[str]) -> bool:
    """Whether a path means shards: it ends with .tar."""
    return str(path).lower().endswith(".tar")


def expand_shards(path: str | os.PathLike[str]) -> list[Path]:
    """The files that `shards-{0000..0099}.tar` or `shards-*.tar` means, in order.

    >>> from capsroute.data.images.shards import expand_shards
    >>> [path.name for path in expand_shards("pets-{08..10}.tar")]
    ['pets-08.tar', 'pets-09.tar', 'pets-10.tar']
    """
    text = os.path.expanduser(os.fspath(path))
    found = RANGE.search(text)
    if found is None:
        given = Path(text)
        return sorted(given.parent.glob(given.name)) if set(text) & set("*?[") else [given]
    first, last = found.groups()
    numbers = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
    names = [f"{text[: found.start()]}{number}{text[found.end() :]}" for number in numbers]
    return [shard for name in names for shard in expand_shards(name)]


def list_shards(path: str | os.PathLike[str]) -> ShardListing:
    """The pictures of all shards that `path` means, with their labels; nothing is decoded."""
    shards = expand_shards(path)
    if not shards:
        raise DataError(f"{path}: expected shards, found none")
    samples = [(number, sample) for number, shard in enumerate(shards) for sample in _samples(shard)]
    if not samples:
        raise DataError(f"{path}: expected pictures with a .cls or .json beside each, found none")
    names = sorted({sample.label for _, sample in samples}, key=natural_order)
    places = {name: place for place, name in enumerate(names)}
    return ShardListing(
        shards[0].parent,
        [sample.file for _, sample in samples],
        np.array([places[sample.label] for _, sample in samples]),
        tuple(names),
        np.array([NAMES.get(sample.split, UNSAID) for _, sample in samples], dtype=np.int8),
        tuple(shards),
        np.array([(number, sample.offset, sample.size) for number, sample in samples], dtype=np.int64),
    )


@dataclass
class _Sample:
    file: str = ""
    offset: int = 0
    size: int = 0
    label: str = ""
    split: str = ""


def _samples(shard: Path) -> Iterator[_Sample]:
    """The samples of one tar file: members in a row whose names are alike up to the first dot."""
    check_file(shard)
    key, sample = None, _Sample()
    try:
        with tarfile.open(shard, "r:") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                start, _, kind = os.path.basename(member.name).partition(".")
                here = os.path.join(os.path.dirname(member.name), start)
                if here != key:
                    yield from _whole(sample, shard)
                    key, sample = here, _Sample()
                _add(sample, member, f".{kind.lower()}", tar, shard)
                tar.members = []  # type: ignore[attr-defined]  # it would keep all of them
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{shard}: expected a whole tar file, found a damaged one ({error})") from None
    yield from _whole(sample, shard)


def _add(sample: _Sample, member: tarfile.TarInfo, kind: str, tar: tarfile.TarFile, shard: Path) -> None:
    if kind.endswith(SUFFIXES):
        sample.file, sample.offset, sample.size = member.name, member.offset_data, member.size
    elif kind in (".cls", ".json"):
        stream = tar.extractfile(member)
        if member.size > LARGEST_NOTE or stream is None:
            raise DataError(f"{shard}, {member.name}: expected a label, found {member.size:,} bytes")
        text = stream.read()
        if kind == ".cls":
            sample.label = sample.label or text.decode("utf-8", "replace").strip()
        else:
            _read_note(sample, text, f"{shard}, {member.name}")


def _read_note(sample: _Sample, text: bytes, where: str) -> None:
    try:
        note = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: expected JSON, found something else ({error})") from None
    if isinstance(note, dict):
        sample.label = str(note.get("class", note.get("label", sample.label)))
        sample.split = str(note.get("split", ""))


def _whole(sample: _Sample, shard: Path) -> Iterator[_Sample]:
    if sample.file:
        if not sample.label:
            raise DataError(f"{shard}, {sample.file}: expected a .cls or a .json with its class beside it, found none")
        yield sample


def pack(
    listing: Listing,
    prefix: str | os.PathLike[str],
    per_shard: int = PER_SHARD,
    report: Callable[[int], None] = lambda done: None,
) -> list[Path]:
    """Write a folder's pictures as they are into `prefix-0000.tar`, `prefix-0001.tar`, ..., in a fixed random order.

    What the folder says of splits is kept. A file that cannot be read is an error: what is packed will be sent about.
    """
    order: Sequence[int] = np.argsort(splitmix64(np.arange(len(listing), dtype=np.uint64), 0), kind="stable").tolist()
    digits = max(4, len(str(len(order) // per_shard)))
    written = []
    for number, begin in enumerate(range(0, len(order), per_shard)):
        path = Path(f"{os.fspath(prefix)}-{number:0{digits}d}.tar")
        with writing_atomically(path) as stream, tarfile.open(fileobj=stream, mode="w") as tar:
            for place, row in enumerate(order[begin : begin + per_shard], start=begin):
                _write(tar, f"{place:09d}", listing, row)
        report(min(begin + per_shard, len(order)))
        written.append(path)
    return written


def _write(tar: tarfile.TarFile, key: str, listing: Listing, row: int) -> None:
    label, part = int(listing.labels[row]), int(listing.parts[row])
    note = {"class": listing.classes[label], **({} if part == UNSAID else {"split": PARTS[part]})}
    file = listing.root / listing.files[row]
    check_file(file)
    contents = {
        file.suffix.lower(): file.read_bytes(),
        ".cls": str(label).encode(),
        ".json": json.dumps(note, ensure_ascii=False).encode(),
    }
    for suffix, content in contents.items():
        member = tarfile.TarInfo(key + suffix)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
