"""Docstrings as the reference shows them: examples (`>>>`) become blocks of code. Loaded by mkdocstrings."""

from __future__ import annotations

import re
from typing import Any

import griffe


def fenced(text: str) -> str:
    """A docstring whose examples stand in fences.

    >>> from tools.docstrings import fenced
    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()[2:]
    ['```pycon', '>>> 1 + 1', '2', '```']
    """
    return re.sub(r"^( *)(>>> .*(?:\n.+)*)", r"\1```pycon\n\1\2\n\1```", text, flags=re.MULTILINE)


class Examples(griffe.Extension):
    """Every object's docstring, fenced."""

    def on_instance(self, *, obj: Any, **more: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
