"""A recipe: everything that decides a training run, checked whole before anything runs."""

from __future__ import annotations

import difflib
from typing import Any

from pydantic import ValidationError, model_validator

from capsroute.data import dataset_info
from capsroute.models import list_models
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

__all__ = ["Recipe", "RecipeError"]


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
            raise ValueError(f"model.name: no model is called {self.model.name!r}; cr.list_models() lists them")
        if self.text is None and self.data.name is not None and not dataset_info(self.data.name).shape:
            raise ValueError(f"text: {self.data.name!r} are sentences; [text] must name the encoder that reads them")
        if self.loss.reconstruction and self.data.normalise != "none":
            raise ValueError("data.normalise: reconstruction needs images in [0, 1]; normalise = 'none'")
        if self.data.parts and not self.loss.reconstruction:
            raise ValueError("data.parts: the parts are there to be reconstructed; set loss.reconstruction")
        if self.loss.name == "spread" and any(entry.get("name") == "mixup" for entry in self.data.augment):
            raise ValueError("loss.name: the spread loss needs one label an image, mixup gives two")
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
            table = content
            *tables, key = setting.split(".")
            for part in tables:
                table = table.setdefault(part, {})
            table[key] = value
        return Recipe.of(content)


def _line(problem: Any) -> str:
    """One mistake that pydantic found, in one line: where, what was expected, what was given."""
    where = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{where}: no such setting; {_neighbours(problem['loc'])}"
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
    near = difflib.get_close_matches(str(path[-1]), section.model_fields, n=1)
    return f"did you mean {near[0]!r}?" if near else f"there are {', '.join(section.model_fields)}"
