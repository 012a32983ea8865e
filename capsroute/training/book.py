"""The book of recipes: finding them by name, what one takes over from another, and overrides from the command line."""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path
from typing import Any

from capsroute.training.recipe import Recipe, RecipeError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["list_recipes", "load_recipe", "parse_override", "recipe_folder"]

QUICKSTART = "quickstart"
# A row of a table has its own number: nothing of these is taken over from the recipe that is extended.
OWN = ("row", "published", "spread")


def recipe_folder() -> Path:
    """The folder of recipes: inside an installed package, beside it in a checkout."""
    package = Path(__file__).parents[1]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def list_recipes() -> list[str]:
    """Names of all recipes that come with capsroute.

    >>> import capsroute as cr
    >>> "quickstart" in cr.training.list_recipes()
    True
    """
    return sorted(path.stem for path in recipe_folder().glob("*.toml"))


def load_recipe(recipe: str | os.PathLike[str], overrides: list[str] | None = None) -> Recipe:
    """The recipe of this name or in this TOML file, with overrides such as `training.epochs=5`.

    >>> import capsroute as cr
    >>> cr.training.load_recipe("quickstart", ["training.epochs=5"]).training.epochs
    5
    """
    path = _find(recipe)
    content = _read(path, ())
    content.setdefault("name", path.stem)
    for override in overrides or []:
        _apply(content, override)
    return Recipe.of(content)


def _find(recipe: str | os.PathLike[str], beside: Path | None = None) -> Path:
    given = Path(recipe)
    for path in (given, *([beside / f"{given}.toml"] if beside else []), recipe_folder() / f"{given}.toml"):
        if path.is_file():
            return path
    near = difflib.get_close_matches(str(recipe), list_recipes(), n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise RecipeError(f"recipe: expected a TOML file or a name that `capsroute recipes` lists, got '{recipe}'{hint}")


def _read(path: Path, extending: tuple[Path, ...]) -> dict[str, Any]:
    """The content of a file, merged into that of the recipe it extends."""
    if path in extending:
        raise RecipeError(f"{path.name}: extends itself through {', '.join(other.name for other in extending)}")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"{path.name}: expected TOML, found something else ({error})") from None
    base = content.pop("extends", None)
    if base is None:
        return content
    inherited = _read(_find(base, path.parent), (*extending, path))
    inherited.pop("name", None)
    inherited.pop("description", None)
    for key in OWN:
        inherited.get("paper", {}).pop(key, None)
    return merge(inherited, content)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, table by table. A table that changes its `name` starts afresh: options belong to a name.

    >>> from capsroute.training.book import merge
    >>> merge({"loss": {"name": "margin", "scaling": "released"}}, {"loss": {"name": "spread"}})
    {'loss': {'name': 'spread'}}
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and value.get("name", old.get("name")) == old.get("name"):
            value = merge(old, value)
        merged[key] = value
    return merged


def parse_override(override: str) -> tuple[list[str], Any]:
    """`a.b=c` as the path and the value; the value is TOML where it can be, else a string.

    >>> from capsroute.training.book import parse_override
    >>> parse_override("training.epochs=5"), parse_override("training.precision=bf16")
    ((['training', 'epochs'], 5), (['training', 'precision'], 'bf16'))
    """
    setting, equals, text = override.partition("=")
    path = setting.strip().split(".")
    if not equals or not all(path):
        raise RecipeError(f"--set: expected section.setting=value, got {override!r}")
    try:
        return path, tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return path, text.strip()


def _apply(content: dict[str, Any], override: str) -> None:
    (*tables, key), value = parse_override(override)
    table = content
    for part in tables:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set: {part!r} in {override!r} is a setting, not a section")
    table[key] = value
