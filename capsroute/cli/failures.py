"""Failures that a user can do something about end a command with one message instead of a traceback."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console

from capsroute.data import FetchError
from capsroute.extras import naming_extras
from capsroute.files import PARTIAL
from capsroute.training import Interrupted, LostContact, NonFiniteLoss, OutOfMemory

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        # A file that was written aside has two names: the second is the one that it was to get.
        place = error.filename2 or error.filename
        _say(f"{place}: {error.strerror}. Nothing can be written there: name another place.")
    except OSError as error:
        if error.errno in FULL:
            intact = "What was written before is intact; `train --resume` goes on from it."
            _say(f"{_place(error)}: {error.strerror}. {intact}")
        if error.filename is None:
            raise
        _say(f"{_place(error)}: {error.strerror}")
    except Interrupted as error:
        _say(str(error), 128 + error.signal)
    except KeyboardInterrupt:
        _say("stopped by SIGINT", 130)


def _place(error: OSError) -> str:
    """The file that it is about; for one that was to get its name when it was whole, the folder."""
    if error.filename is None:
        return "the run folder"
    folder, name = os.path.split(str(error.filename))
    return folder or "." if PARTIAL in name else str(error.filename)


def _say(text: str, status: int = 1) -> None:
    Console(stderr=True).print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)
