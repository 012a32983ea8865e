"""A recipe: everything that decides a training run, checked whole before anything runs; finding recipes by name, what
one takes over from another, and overrides from the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError, model_validator

from capsroute.data import dataset_info
from capsroute.models import CapsuleModel, list_models
from capsroute.models.registry import registered
from capsroute.naming import OF_YOUR_OWN, did_you_mean
from capsroute.training.sections import (
    CheckpointSection,
    DataSection,
    EvaluationSection,
    LoggingSection,
    LossSection,
    ModelSection,
    OptimiserSection,
    Paper,
    ScheduleSection,
    Section,
    TextSection,
    TrainingSection,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

QUICKSTART = "quickstart"
IMAGES = "images"  # for images of one's own, where no recipe is named
# A row of a table has its own number: nothing of these is taken over from the recipe that is extended.
OWN = ("row", "published", "spread")


class RecipeError(ValueError):
    """A recipe that cannot be run; the message has one line for each thing that is wrong with it."""


class Recipe(Section):
    """Everything that decides a training run.

    >>> import capsroute as cr
    >>> recipe = cr.training.Recipe.of({"model": {"name": "capsnet_small"}, "data": {"name": "digits"}})
    >>> recipe.training.epochs
    10
    """

    name: str = "recipe"
    description: str = ""
    smoke: bool = False  # two steps on noise: never a result
    paper: Paper | None = None
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    text: TextSection | None = None
    loss: LossSection = LossSection()
    optimiser: OptimiserSection = OptimiserSection()
    schedule: ScheduleSection = ScheduleSection()
    training: TrainingSection = TrainingSection()
    checkpoint: CheckpointSection = CheckpointSection()
    logging: LoggingSection = LoggingSection()
    evaluation: EvaluationSection = EvaluationSection()

    @classmethod
    def of(cls, content: dict[str, Any]) -> Recipe:
        """A recipe from plain data; a RecipeError with one readable line for each mistake."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            name = content.get("name", "recipe")
            raise RecipeError("\n".join(f"{name}: {_line(problem)}" for problem in error.errors())) from None

    @model_validator(mode="after")
    def _pairs(self) -> Recipe:
        if self.model.name is not None and self.model.name not in list_models():
            near = did_you_mean(self.model.name, list_models()) or f"; cr.list_models() lists them; {OF_YOUR_OWN}"
            raise ValueError(f"model.name: no model is called {self.model.name!r}{near}")
        if self.model.name is not None:
            _check_arguments(self.model.name, self.model.arguments)
        if self.text is None and self.data.name is not None and not dataset_info(self.data.name).shape:
            raise ValueError(f"text: {self.data.name!r} are sentences; [text] must name the encoder that reads them")
        if self.data.parts and not self.loss.reconstruction:
            raise ValueError("data.parts: the parts are there to be reconstructed; set loss.reconstruction")
        if self.loss.name == "spread" and any(entry.get("name") == "mixup" for entry in self.data.augment):
            raise ValueError("loss.name: the spread loss needs one label per image, mixup gives two")
        if self.training.sharding == "fsdp" and self.training.ema is not None:
            raise ValueError("training.ema: averaged weights are kept whole, which fsdp is there to avoid")
        return self

    def plain(self) -> dict[str, Any]:
        """Every setting that means something, defaults included, as plain data that `of` takes back."""
        unused = {
            table: getattr(self, table).unused()
            for table in type(self).model_fields
            if isinstance(getattr(self, table), Section)
        }
        return self.model_dump(exclude=unused, exclude_none=True, mode="json")

    def replace(self, **changes: Any) -> Recipe:
        """The same recipe with dotted settings changed: `recipe.replace(**{"training.seed": 3})`."""
        content = self.model_dump(exclude_unset=True, mode="json")
        for setting, value in changes.items():
            _set(content, setting.split("."), value)
        return Recipe.of(content)


def _check_arguments(model: str, arguments: dict[str, Any]) -> None:
    """Raise ValueError where a model has no such argument."""
    defaults = _arguments_of(registered(model))
    known = {*defaults, "pretrained"}
    for key, value in arguments.items():
        if key not in known:
            hint = did_you_mean(key, known) or f"; there are {', '.join(sorted(known))}"
            raise ValueError(f"model.arguments.{key}: {model!r} has no such argument{hint}")
        # It would be left out of the run's recipe.toml, and the run would go on with another model.
        if value is None and defaults.get(key) is not None:
            hint = f"instead of its own {defaults[key]!r}; write [] or false, or make the model in Python"
            raise ValueError(f"model.arguments.{key}: a recipe is TOML, which has no word for None {hint}")


@lru_cache
def _arguments_of(builder: Callable[..., CapsuleModel]) -> dict[str, Any]:
    """What a model's builder takes, with its defaults; it passes most on: those that its model remembers."""
    with torch.device("meta"):
        return builder().config


def _line(problem: Any) -> str:
    """One mistake that pydantic found, in one line: where, what was expected, what was given."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{where}: no such setting{_neighbours(problem['loc'])}"
    if problem["type"] == "missing":
        return f"{where}: this setting is needed"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        return f"{where}.{message}" if where else message
    return f"{where}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def _neighbours(path: tuple[int | str, ...]) -> str:
    """What could have been written instead of an unknown key."""
    section: Any = Recipe
    for part in path[:-1]:
        section = section.model_fields[part].annotation
        section = next((kind for kind in getattr(section, "__args__", ()) if kind is not type(None)), section)
    return did_you_mean(str(path[-1]), section.model_fields) or f"; there are {', '.join(section.model_fields)}"


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
    if not isinstance(recipe, str | os.PathLike):
        raise TypeError(f"recipe: expected the name of one or a TOML file, got {type(recipe).__name__}")
    path = _find(recipe)
    content = _read(path, ())
    content.setdefault("name", path.stem)
    for override in overrides or []:
        _set(content, *parse_override(override))
    return Recipe.of(content)


def _find(recipe: str | os.PathLike[str], beside: Path | None = None) -> Path:
    given = Path(recipe)
    for path in (given, *([beside / f"{given}.toml"] if beside else []), recipe_folder() / f"{given}.toml"):
        if path.is_file():
            return path
    hint = "; settings are given with --set" if "=" in str(recipe) else did_you_mean(str(recipe), list_recipes())
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
    if not isinstance(base, str):
        raise RecipeError(f"{path.name}: extends: expected the name of a recipe, got {base!r}")
    inherited = _read(_find(base, path.parent), (*extending, path))
    inherited.pop("name", None)
    inherited.pop("description", None)
    for key in OWN:
        inherited.get("paper", {}).pop(key, None)
    return merge(inherited, content)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """`base` with `changes`, table by table. A table that changes its `name` starts afresh: options belong to a name.

    >>> from capsroute.training.recipe import merge
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

    >>> from capsroute.training.recipe import parse_override
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


def _set(content: dict[str, Any], path: list[str], value: Any) -> None:
    table = content
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise RecipeError(f"--set: {part!r} in {'.'.join(path)!r} is a setting, not a section")
    table[path[-1]] = value
