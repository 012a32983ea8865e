"""Getting a data set: sources in order, everything verified before anything is kept, files renamed into place."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from capsroute.data.errors import DataError, FetchError
from capsroute.data.files import data_root, find_folder, record_checksums, verify
from capsroute.files import write_atomically

if TYPE_CHECKING:
    from capsroute.data.registry import DatasetInfo
    from capsroute.data.sources import Contents, Report, Source


def fetch_files(info: DatasetInfo, root: str | os.PathLike[str] | None = None, report: Report | None = None) -> Path:
    """The folder with the files of `info`: found under `root`, or filled from the first source that delivers them."""
    folder = data_root(root)
    here = find_folder(folder, info.name, info.files)
    if here is not None:
        return here
    try:
        return _fetch(info, folder, report or (lambda text, done, total: None))
    except FetchError:
        raise
    except OSError as error:
        raise FetchError(
            f"{info.name}: it cannot be kept in {folder} ({error.strerror or error}); set CAPSROUTE_DATA to a folder "
            "with room that can be written to"
        ) from None


def _fetch(info: DatasetInfo, folder: Path, report: Report) -> Path:
    tried = [f"your folder {folder / info.name}: " + ", ".join(file.name for file in info.files[:4]) + " not all there"]
    for source in info.sources:
        try:
            contents = _collect(source, info, folder, report)
        except (FetchError, DataError) as error:
            tried.append(f"{source.describe()}: {error}")
            continue
        for name, content in contents.items():
            write_atomically(folder / info.name / name, content)
        record_checksums(folder / info.name, contents)
        return folder / info.name
    raise FetchError(_advice(info, folder, tried))


def _collect(source: Source, info: DatasetInfo, folder: Path, report: Report) -> Contents:
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{info.name}-", dir=folder))
    try:
        contents = source.collect(scratch, report)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    total, done = sum(len(content) for content in contents.values()), 0
    for file in info.files:
        if file.name not in contents:
            raise DataError(f"{source.describe()}: expected the file {file.name}, found {sorted(contents)}")
        verify(contents[file.name], file, Path(file.name))
        done += len(contents[file.name])
        report(f"verified {file.name}", done, total)
    return {file.name: contents[file.name] for file in info.files}


def _advice(info: DatasetInfo, folder: Path, tried: list[str]) -> str:
    wanted = ", ".join(file.name for file in info.files)
    return "\n".join(
        [
            f"{info.name}: no source delivered it. Tried:",
            *(f"  - {line}" for line in tried),
            f"By hand: get {wanted} (plain or .gz) from {info.origin},",
            f"put them into {folder / info.name}, or set CAPSROUTE_DATA to the folder that holds {info.name}/.",
        ]
    )
