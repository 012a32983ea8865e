"""Which pictures there are, what they show and for which split: folders of class folders, and tables of path,label."""

from __future__ import annotations

import csv
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capsroute.data.errors import DataError
from capsroute.data.images.pictures import SUFFIXES, check_file, inspect_picture, read_picture
from capsroute.data.seeding import whole_seed

PARTS = ("train", "validation", "test")
NAMES = {"train": 0, "training": 0, "validation": 1, "val": 1, "valid": 1, "test": 2, "testing": 2}
UNSAID = -1  # a picture that no split was named for
SHARES = {1: 0.1, 2: 0.2}  # of a class that is cut off for validation and for test
INSPECTED = 500  # pictures whose headers are looked at to choose a size


@dataclass(frozen=True)
class Facts:
    """What a collection looks like, from the headers of some of its pictures."""

    channels: int  # 1 where all are grey, else 3
    height: int
    width: int
    mixed: bool  # pictures differ in size: height and width are then the median of their shorter sides


@dataclass(frozen=True, eq=False)
class Listing:
    """Pictures by name, not decoded yet.

    Attributes:
        root: what the names of files are relative to.
        files: a name for each picture.
        labels: int64 `[n]`.
        classes: a name for each label.
        parts: int8 `[n]`, a place in `PARTS`, or UNSAID.
    """

    root: Path
    files: Sequence[str]
    labels: np.ndarray
    classes: tuple[str, ...]
    parts: np.ndarray

    def __len__(self) -> int:
        return len(self.files)

    def with_one_name_each(self, source: Path) -> Listing:
        """With the same name wherever a picture comes again: a.png, ./a.png and links to it are one picture."""
        files, first = list(self.files), dict[str, int]()
        folders: dict[str, str] = {}  # where those really are that pictures are in: they are few
        for place, file in enumerate(files):
            folder, name = os.path.split(os.path.abspath(os.path.join(self.root, file)))
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            really = os.path.join(folders[folder], name)
            before = first.setdefault(os.path.realpath(really) if os.path.islink(really) else really, place)
            files[place] = files[before]
            label, found = (self.classes[self.labels[row]] for row in (before, place))
            if label != found:
                both = f"{label!r} and {found!r}"
                raise DataError(f"{source}: expected one label a picture, found {both} for {file!r}")
            if (self.parts[before] <= 0) != (self.parts[place] <= 0):  # without a split it is trained on
                raise DataError(f"{source}: expected training pictures in train alone, found {file!r} elsewhere too")
        return replace(self, files=files)

    def name(self, row: int) -> str:
        """What an error calls the picture."""
        return str(self.root / self.files[row])

    def picture(self, row: int, size: tuple[int, int] | None, channels: int) -> np.ndarray:
        """A picture, uint8 `[c, h, w]`."""
        return read_picture(self.root / self.files[row], size, channels)

    def fingerprint(self) -> str:
        """What changes when a picture is added, taken away or written anew."""
        digest = hashlib.sha256(repr((str(self.root), self.classes)).encode(errors="surrogateescape"))
        for file, label in zip(self.files, self.labels, strict=True):
            path = self.root / file
            status = path.stat() if path.exists() else None
            facts = (file, int(label), *((status.st_size, status.st_mtime_ns) if status else ()))
            digest.update(repr(facts).encode(errors="surrogateescape"))
        return digest.hexdigest()

    def facts(self) -> Facts:
        """Channels and size, from the headers of up to 500 pictures, evenly spread."""
        found = []
        for row in np.unique(np.linspace(0, len(self) - 1, INSPECTED).astype(int)):
            try:
                found.append(self.inspect(row))
            except DataError as error:
                problem = error
        if not found:
            raise problem
        channels, heights, widths = np.array(found).T
        mixed = bool((heights != heights[0]).any() or (widths != widths[0]).any())
        side = int(np.median(np.minimum(heights, widths)))
        height, width = (side, side) if mixed else (int(heights[0]), int(widths[0]))
        return Facts(int(channels.max()), height, width, mixed)

    def inspect(self, row: int) -> tuple[int, int, int]:
        """Channels, height and width of a picture."""
        path = self.root / self.files[row]
        check_file(path)
        try:
            with path.open("rb") as stream:
                return inspect_picture(stream, str(path))
        except OSError as error:
            raise DataError(f"{path}: expected a file that can be read, found none ({error.strerror})") from None

    def rows(self, part: str) -> np.ndarray:
        """The rows of a split, int64 `[m]`."""
        return np.flatnonzero(self.parts == PARTS.index(part))

    def cut(self, seed: int, validation: bool = True) -> tuple[Listing, str]:
        """With a split for every picture, and what was decided, in words.

        Splits that are not there are cut from the training pictures, a tenth and a fifth of each class. Which
        pictures that are follows from their names and the seed, so that new ones move few of the old ones.
        """
        seed = whole_seed(seed)
        parts, cut = np.where(self.parts == UNSAID, 0, self.parts).astype(np.int8), []
        for part in (2, 1) if validation else (2,):
            if not (parts == part).any():
                held_out = self._held_out(np.flatnonzero(parts == 0), SHARES[part], seed)
                parts[held_out] = part
                cut.append(f"{len(held_out):,} for {PARTS[part]}")
        if not validation:
            parts[parts == 1] = 0
        said = f"cut with seed {seed}: {', '.join(cut)}" if cut else ""
        return replace(self, parts=parts), said

    def _held_out(self, rows: np.ndarray, share: float, seed: int) -> np.ndarray:
        chosen: list[int] = []
        for label in range(len(self.classes)):
            members = rows[self.labels[rows] == label]
            names = dict.fromkeys(self.files[row] for row in members)  # one that is listed twice is on one side
            count = round(share * len(names)) or int(len(names) > 2)
            held_out = set(sorted(names, key=lambda name: _key(seed, share, name))[:count])
            chosen += [row for row in members if self.files[row] in held_out]
        return np.array(sorted(chosen), dtype=np.int64)


def _key(seed: int, share: float, name: str) -> bytes:
    return hashlib.blake2b(repr((seed, share, name)).encode(errors="surrogateescape"), digest_size=8).digest()


def list_folder(path: str | os.PathLike[str]) -> Listing:
    """A folder of class folders, or of `train/`, `validation/` and `test/`, each with class folders.

    Splits are meant only where every folder has the name of one, and `train` is among them: a class may be called
    train beside a class called car. Two splits beside other folders, or without `train`, could be meant either way.
    """
    root = Path(path)
    folders = _folders(root)
    if not folders:
        raise DataError(f"{root}: expected a folder with one folder a class, found none")
    named = all(folder.lower() in NAMES for folder in folders) and any(NAMES[name.lower()] == 0 for name in folders)
    splits = {NAMES[folder.lower()]: folder for folder in folders if folder.lower() in NAMES}
    if not named and len(splits) > 1:
        others = [folder for folder in folders if folder.lower() not in NAMES]
        beside = f"{', '.join(others)} beside {', '.join(splits.values())}" if others else f"{', '.join(folders)} alone"
        raise DataError(f"{root}: expected class folders, or train/, validation/ and test/ of them, found {beside}")
    tops = [(folder, NAMES[folder.lower()]) for folder in folders] if named else [("", UNSAID)]
    classes = tuple(sorted({name for top, part in tops if part <= 0 for name in _folders(root / top)}))
    for name in classes:
        try:
            name.encode()  # as recipes and models keep it
        except UnicodeEncodeError:
            raise DataError(f"{root}: expected folders whose names are UTF-8, found {os.fsencode(name)!r}") from None
    files: list[str] = []
    labels: list[int] = []
    parts: list[int] = []
    for top, part in tops:
        for name in _folders(root / top):
            if name not in classes:
                raise DataError(f"{root / top / name}: expected a class that is in train/ too: {', '.join(classes)}")
            found = sorted(pictures_below(root / top / name))
            if not found:
                wanted = ", ".join(SUFFIXES)
                raise DataError(f"{root / top / name}: expected at least one picture ({wanted}), found none")
            files += [str(Path(top) / name / file) for file in found]
            labels += [classes.index(name)] * len(found)
            parts += [part] * len(found)
    return Listing(root, files, np.array(labels), classes, np.array(parts, dtype=np.int8)).with_one_name_each(root)


def list_table(path: str | os.PathLike[str]) -> Listing:
    """A CSV file of path,label, or path,label,split; paths are relative to the folder that it is in."""
    source = Path(path)
    check_file(source)
    try:
        with source.open(newline="", encoding="utf-8-sig") as stream:
            table = [row for row in csv.reader(stream) if row]
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{source}: expected a CSV file of path,label, found something else ({error})") from None
    if table and [cell.strip().lower() for cell in table[0][:2]] == ["path", "label"]:
        table = table[1:]
    elif table and not table[0][0].lower().strip().endswith(SUFFIXES) and not (source.parent / table[0][0]).exists():
        raise DataError(f"{source}: expected the heading path,label or path,label,split, or none, found {table[0]!r}")
    for number, row in enumerate(table, start=1):
        if len(row) not in (2, 3):
            raise DataError(f"{source}: expected path,label or path,label,split, found {row!r} as entry {number}")
        if not row[0].strip() or not row[1].strip():
            raise DataError(f"{source}: expected a path and a label, found {row!r} as entry {number}")
        if len(row) == 3 and row[2].strip().lower() not in ("", *NAMES):
            raise DataError(f"{source}: expected the split {', '.join(PARTS)} in entry {number}, found {row[2]!r}")
    if not table:
        raise DataError(f"{source}: expected lines of path,label, found none")
    names = sorted({row[1].strip() for row in table}, key=natural_order)
    places = {name: place for place, name in enumerate(names)}
    labels = np.array([places[row[1].strip()] for row in table])
    parts = [NAMES.get(row[2].strip().lower(), UNSAID) if len(row) == 3 else UNSAID for row in table]
    files = [row[0].strip() for row in table]
    found = Listing(source.parent, files, labels, tuple(names), np.array(parts, dtype=np.int8))
    return found.with_one_name_each(source)


def natural_order(name: str) -> tuple[int, int, str]:
    """Numbers in their order, before words."""
    return (0, int(name), name) if name.isdecimal() and len(name) < 19 else (1, 0, name)


def _folders(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    return sorted(entry.name for entry in os.scandir(path) if not entry.name.startswith(".") and _is_folder(entry))


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:  # a link to itself, say
        raise DataError(f"{entry.path}: expected a file or a folder ({error.strerror})") from None


def pictures_below(folder: Path, inside: str = "", above: tuple[str, ...] = ()) -> Iterator[str]:
    """Names of all entries below `folder` that should be pictures; hidden ones are not.

    `above` are the folders that links led away from on the way to `inside`: a link back to one would be followed for
    ever.
    """
    for entry in os.scandir(folder / inside):
        name = os.path.join(inside, entry.name)
        if entry.name.startswith("."):
            continue
        if entry.name.lower().endswith(SUFFIXES):
            yield name
        elif _is_folder(entry):
            left = above
            if entry.is_symlink():
                left, target = (*above, os.path.realpath(folder / inside)), os.path.realpath(entry.path)
                if any(Path(place).is_relative_to(target) for place in left):
                    raise DataError(f"{entry.path}: expected a folder of pictures, found a link to {target}, above it")
            yield from pictures_below(folder, name, left)
