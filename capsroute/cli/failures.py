"""Failures that a user can do something about end a command with one message instead of a traceback."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from capsroute.data import FetchError
from capsroute.extras import naming_extras
from capsroute.training import Interrupted, LostContact, NonFiniteLoss, OutOfMemory


@contextmanager
def explained() -> Iterator[None]:
    """What is known to go wrong becomes a message on standard error and exit status 1.

    A signal becomes 128 and its number, as shells have it.
    """
    try:
        with naming_extras():
            yield
    except ModuleNotFoundError as error:
        if "capsroute[" not in str(error):
            raise
        _say(str(error))
    except (ValueError, NonFiniteLoss, OutOfMemory, LostContact, FetchError) as error:
        _say(str(error))
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        _say(f"{error.filename}: {error.strerror}. Nothing can be written there: name another place.")
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):
            raise
        where = error.filename or "the run folder"
        _say(f"{where}: {error.strerror}. What was written before is intact, and --resume goes on from it.")
    except Interrupted as error:
        _say(str(error), 128 + error.signal)
    except KeyboardInterrupt:
        _say("stopped by SIGINT", 130)


def _say(text: str, status: int = 1) -> None:
    Console(stderr=True).print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)
