"""What the data room raises: a file that is not what it claims to be, or a data set that no source could deliver."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar


class DataError(ValueError):
    """A data file is damaged or not of the expected format; the message names the file, what was found and expected."""


class FetchError(OSError):
    """No source could deliver a data set; the message lists what was tried and what can be done by hand."""


class DataWarning(UserWarning):
    """Something about the data that is not as it should be, and does not stop the work: files that were left out."""


P = ParamSpec("P")
R = TypeVar("R")

# Modules of the extra `train`, by the name that they are imported by.
PACKAGES = {
    "PIL": "pillow",
    "sklearn": "scikit-learn",
    "scipy": "scipy",
    "pooch": "pooch",
    "requests": "pooch",
    "platformdirs": "platformdirs",
    "torchdata": "torchdata",
}


def named_extra(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose missing package, if it is one of ours, is named together with the way to install it."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            package = PACKAGES.get((error.name or "").split(".")[0])
            if package is None:
                raise
            message = f"{package} is missing; install it with: pip install 'capsroute[train]'"
            raise ModuleNotFoundError(message, name=error.name) from None

    return called
