"""Packages that only some of the library needs: where one is missing, the error says what to install."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# By the name that a module is imported by: the package that has it, and the extra that brings the package.
PACKAGES = {
    "PIL": ("pillow", "train"),
    "matplotlib": ("matplotlib", "train"),
    "platformdirs": ("platformdirs", "train"),
    "pooch": ("pooch", "train"),
    "pydantic": ("pydantic", "train"),
    "requests": ("pooch", "train"),
    "rich": ("rich", "train"),
    "scipy": ("scipy", "train"),
    "sklearn": ("scikit-learn", "train"),
    "tomli": ("tomli", "train"),
    "tomli_w": ("tomli-w", "train"),
    "torchdata": ("torchdata", "train"),
    "typer": ("typer", "train"),
    "typing_extensions": ("pydantic", "train"),
    "huggingface_hub": ("huggingface_hub", "hub"),
    "onnx": ("onnx", "export"),
    "onnxruntime": ("onnxruntime", "export"),
    "onnxscript": ("onnxscript", "export"),
    "starlette": ("starlette", "explore"),
    "transformers": ("transformers", "text"),
    "uvicorn": ("uvicorn", "explore"),
}


@contextmanager
def naming_extras() -> Iterator[None]:
    """A package that is missing in here, if it is one of ours, is named together with the way to install it.

    >>> from capsroute.extras import naming_extras
    >>> with naming_extras():
    ...     raise ModuleNotFoundError("No module named 'PIL'", name="PIL")
    Traceback (most recent call last):
    ModuleNotFoundError: pillow is missing; install it with: pip install 'capsroute[train]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package, extra = PACKAGES.get((error.name or "").split(".")[0], ("", ""))
        if not package:
            raise
        message = f"{package} is missing; install it with: pip install 'capsroute[{extra}]'"
        raise ModuleNotFoundError(message, name=error.name) from None


def named_extra(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose missing package is named as `naming_extras` does."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with naming_extras():
            return function(*args, **kwargs)

    return called
