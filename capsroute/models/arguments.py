"""The arguments that made a model, kept as plain data so that the model can be made again."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from capsroute.layers import Router

__all__ = ["recording"]


def recording(init: Callable) -> Callable:
    """`__init__` that keeps its arguments, defaults included, in `self.config`."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        arguments = signature.bind(self, *args, **kwargs)
        arguments.apply_defaults()
        given = {name: _plain(value) for name, value in list(arguments.arguments.items())[1:]}
        init(self, *args, **kwargs)
        if type(self).__init__ is recorded:
            self.config = given

    return recorded


def _plain(value: Any) -> Any:
    """An argument as JSON would give it back."""
    if isinstance(value, Router):
        return _plain(value.config())
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
