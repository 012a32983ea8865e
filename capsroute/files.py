"""Files that are there whole or not at all, whoever else writes them, and whenever the machine stops."""

import errno
import glob
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: what dead writers leave is not looked for there
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial"
SETTLED = 60.0  # seconds within which a living writer has long locked the file that it made


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write aside, flush to disk and rename, so that `path` is never there half written.

    The file aside has a name of its own and is made exclusively: writers in any number of threads, processes and
    containers do not meet, the last to finish wins, and a link that somebody put there is not followed.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from capsroute.files import write_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_atomically(Path(folder) / "note.txt", b"all of it")
    ...     (Path(folder) / "note.txt").read_bytes()
    b'all of it'
    """
    with writing_atomically(path) as stream:
        stream.write(content)


@contextmanager
def writing_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A stream whose content becomes the file `path` when all went well, as `write_atomically` does it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from capsroute.files import writing_atomically
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with writing_atomically(Path(folder) / "note.txt") as stream:
    ...         _ = stream.write(b"all "), stream.write(b"of it")
    ...     (Path(folder) / "note.txt").read_bytes()
    b'all of it'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(path)
    stream, aside = _open_aside(path)
    try:
        with stream:
            _lock(stream)
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def lock_file(path: str | os.PathLike[str], content: bytes) -> Iterator[bytes | None]:
    """A lock file that says `content` while this lasts, and None; or, where another holds it, what that one says.

    The lock is the kernel's, and goes with the process that holds it: a file that a killed one left is no lock. Where
    files have no locks (Windows, some network folders), the file itself is the lock, and a left one must be deleted.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from capsroute.files import lock_file
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "lock"
    ...     with lock_file(path, b"mine") as first, lock_file(path, b"yours") as second:
    ...         first, second
    (None, b'mine')
    """
    path = Path(path)
    handle = _take_lock(path)
    if handle is None:
        yield path.read_bytes() if path.is_file() else b""
        return
    try:
        os.ftruncate(handle, 0)
        os.write(handle, content)
        yield None
    finally:
        # Removed while it is held, so that nobody can take one that is about to go.
        path.unlink(missing_ok=True)
        os.close(handle)


def _take_lock(path: Path) -> int | None:
    flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    while True:
        existed = path.exists()
        handle = os.open(path, flags, 0o666)
        try:
            if fcntl is None:
                raise OSError(errno.ENOTSUP, "no locks")
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            if existed:
                os.close(handle)
                return None
            return handle
        try:
            if os.fstat(handle).st_ino == path.stat().st_ino:
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # its holder removed it between our opening and our locking: try the next one


def _open_aside(path: Path) -> tuple[BinaryIO, Path]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    while True:
        aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}{PARTIAL}")
        try:
            return os.fdopen(os.open(aside, flags, 0o666), "wb"), aside
        except FileExistsError:
            continue


def _remove_leftovers(path: Path) -> None:
    """Remove what writers of `path` left that were killed: a living one holds a lock on its file."""
    for aside in path.parent.glob(f".{glob.escape(path.name)}.*{PARTIAL}"):
        with suppress(OSError):
            if time.time() - aside.lstat().st_mtime > SETTLED and _is_abandoned(aside):
                aside.unlink()


def _is_abandoned(aside: Path) -> bool:
    if aside.is_symlink():
        return True
    if fcntl is None:
        return False
    with aside.open("rb") as stream:
        return _lock(stream)


def _lock(stream: BinaryIO) -> bool:
    """Take the lock of a file if it is free, until it is closed; False where it is taken, or files have no locks."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _sync_folder(folder: Path) -> None:
    """Make the new name last through a power cut, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # a file system that does not do this
            raise
    finally:
        os.close(handle)
