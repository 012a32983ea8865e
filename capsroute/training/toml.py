"""Plain data as TOML text: Python reads the format but does not write it."""

from __future__ import annotations

import json
import re
from typing import Any

__all__ = ["to_toml"]

BARE = re.compile(r"[A-Za-z0-9_-]+")


def to_toml(content: dict[str, Any]) -> str:
    """Nested dicts, lists, strings, numbers and booleans as TOML; what is None is left out.

    >>> from capsroute.training.toml import to_toml
    >>> print(to_toml({"name": "mine", "training": {"epochs": 3}}), end="")
    name = "mine"
    <BLANKLINE>
    [training]
    epochs = 3
    """
    return "\n".join(_table(content, ())) + "\n"


def _table(content: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    values = {key: value for key, value in content.items() if value is not None and not isinstance(value, dict)}
    tables = {key: value for key, value in content.items() if isinstance(value, dict)}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    if path and (lines or not tables):
        lines.insert(0, f"[{'.'.join(map(_key, path))}]")
    for key, table in tables.items():
        lines += ["", *_table(table, (*path, key))] if lines else _table(table, (*path, key))
    return lines


def _value(value: Any) -> str:
    if isinstance(value, dict):
        pairs = (f"{_key(key)} = {_value(item)}" for key, item in value.items() if item is not None)
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        # A JSON string is a TOML string, except for the one control character that TOML forbids unescaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    raise ValueError(f"content: expected plain data, got {value!r}")


def _key(key: str) -> str:
    return key if BARE.fullmatch(key) else _value(key)
