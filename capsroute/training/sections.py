"""The tables of a recipe, each with its own checks; `recipe.py` puts them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from capsroute.data import augment, dataset_info
from capsroute.naming import make_named, options_of

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Factor = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1)]


AUGMENTATIONS: dict[str, type] = {
    "shift": augment.Shift,
    "pad_crop": augment.PadCrop,
    "flip": augment.Flip,
    "affine": augment.Affine,
    "elastic": augment.Elastic,
    "cutout": augment.Cutout,
    "mixup": augment.Mixup,
}


def make_augmentation(entries: Sequence[dict[str, Any]]) -> augment.Augmentation | None:
    """The augmentations that `[[data.augment]]` lists, one after the other.

    >>> from capsroute.training.sections import make_augmentation
    >>> make_augmentation([{"name": "shift", "pixels": 2}])
    Shift(pixels=2)
    """
    made = []
    for entry in entries:
        try:
            made.append(make_named("augment", AUGMENTATIONS, entry))
        except TypeError:
            needed = ", ".join(options_of(AUGMENTATIONS[entry["name"]]))
            raise ValueError(f"augment: {entry['name']!r} needs {needed}, got {entry}") from None
    if not made:
        return None
    return made[0] if len(made) == 1 else augment.Compose(made)


def not_finite(value: Any, path: str) -> str | None:
    """Where in plain data a number is infinite or NaN; None where all are finite."""
    if isinstance(value, float) and not math.isfinite(value):
        return path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next(filter(None, (not_finite(item, f"{path}.{key}") for key, item in items)), None)


class Section(BaseModel):
    """A table of a recipe: no unknown keys, no silent conversions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False)

    def unused(self) -> set[str]:
        """Settings that mean nothing beside the others: they must be left out, and are not written down."""
        return set()

    @model_validator(mode="after")
    def _check_unused(self) -> Self:
        for key in type(self).model_fields:
            where = not_finite(getattr(self, key), key)
            if where is not None:
                raise ValueError(f"{where}: expected a finite number")
        given = sorted(key for key in self.unused() if getattr(self, key) != type(self).model_fields[key].default)
        if given:
            raise ValueError(f"{given[0]}: {getattr(self, 'name', 'it')!r} has no such setting")
        return self


class Paper(Section):
    """Where the experiment was published, and the number that was."""

    title: str
    row: str
    published: float | None = None  # test accuracy in per cent, whatever the paper's own unit is
    spread: float | None = None


class ModelSection(Section):
    """A registered model and what differs from its defaults; sizes follow from the data set unless given.

    A recipe that is only ever used with a model made in Python has no name here; the same goes for data.
    """

    name: str | None = None
    arguments: dict[str, Any] = {}
    pretrained: bool | str = False  # start from trained weights: true, the tag of one of several, or a folder
    freeze: bool = False  # train nothing but the classifier and the decoder


class DataSection(Section):
    """Which images, how they are split, and what happens to training images.

    `name` is a data set that capsroute knows, `path` your own: a folder, a .csv or an .npz file. What follows from
    images of your own is written down when a run begins, so that it can be opened again.
    """

    name: str | None = None
    path: str | None = None
    image_size: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None  # of `path`; [h, w], or a side
    channels: Literal[1, 3] | None = None  # of `path`
    split_seed: int | None = None  # splits that `path` lacks are cut from its training images with it; 0 unless given
    strict: bool | None = None  # stop at a file of `path` that cannot be read, instead of leaving it out
    store: Literal["auto", "memory", "disk", "stream"] | None = None  # of `path`; docs/data.md says which when
    memory_limit: Count | None = None  # bytes of decoded images that `store = "auto"` keeps in memory; 4 GiB
    workers: Annotated[int, Field(ge=0)] | None = None  # processes that decode a stream; one per core
    classes: list[str] | None = None
    cut: str | None = None  # which images of `path` the run trained on: a checksum of their names
    options: dict[str, Any] = {}
    validation: bool = True  # False: train on the validation images too, and keep the last weights
    test: list[str] = []  # data sets to test on; empty for `name`
    augment: list[dict[str, Any]] = []
    normalise: Literal["none", "channels"] = "none"  # channels: mean 0 and deviation 1 of each, over the training set
    test_crop: Count | None = None  # images to train on are cropped by `augment`; the others at their centre
    fresh: bool = False  # a generated set draws new pictures every epoch
    parts: bool = False  # reconstruct the two digits of MultiMNIST each by itself

    @field_validator("image_size", mode="before")
    @classmethod
    def _square(cls, given: Any) -> Any:
        return [given, given] if isinstance(given, int) else given

    @model_validator(mode="after")
    def _known(self) -> DataSection:
        named = [dataset_info(name) for name in (self.name, *self.test) if name is not None]
        make_augmentation(self.augment)
        if self.name is not None and self.path is not None:
            raise ValueError(f"path: expected a name or a path, got {self.name!r} and {self.path!r}")
        if self.fresh and (self.name is None or named[0].needs is None):
            raise ValueError(f"fresh: only generated data sets can be drawn anew, {self.name!r} is not one")
        return self


class TextSection(Section):
    """The frozen encoder whose hidden states are the input of a text model (Heinsen 2019, section 4.1)."""

    encoder: str
    layers: Literal["all", "last"] = "all"
    max_tokens: Count = 128
    end_of_text: bool = False  # one such token after each text, as in the code of Heinsen 2019
    cache: bool = True
    mixup: NotNegative = 0.0  # parameter of the Beta distribution; 0 is off
    by_length: bool = False  # texts of like length share a batch: less padding


class LossSection(Section):
    """What is minimised. `auto` is the loss that the model's paper trains it with."""

    name: Literal["auto", "margin", "spread", "cross_entropy", "binary_cross_entropy"] = "auto"
    # "released" halves the margin loss and averages it over classes, as the code released with Sabour 2017 does, which
    # makes the same reconstruction weight count 20 times as much at ten classes.
    scaling: Literal["paper", "released"] = "paper"
    reconstruction: NotNegative = 0.0
    label_smoothing: Fraction = 0.0
    margin_start: Factor = 0.2  # of the spread loss
    margin_end: Factor = 0.9
    margin_rise: Fraction = 0.5  # the part of training in which the margin grows

    def unused(self) -> set[str]:
        smoothing = {"label_smoothing"} if self.name in ("margin", "spread") else set()
        scaling = {"scaling"} if self.name not in ("auto", "margin") else set()
        margins = {"margin_start", "margin_end", "margin_rise"} if self.name not in ("auto", "spread") else set()
        return smoothing | scaling | margins


class OptimiserSection(Section):
    """The optimiser."""

    name: Literal["adam", "adamw", "radam", "sgd"] = "adam"
    learning_rate: Positive = 1e-3
    weight_decay: NotNegative = 0.0
    classifier_factor: Positive = 1.0  # the classifier learns this many times as fast as the rest
    betas: Annotated[list[Fraction], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    eps: Positive = 1e-8
    momentum: Fraction = 0.9
    nesterov: bool = False

    def unused(self) -> set[str]:
        return {"betas", "eps"} if self.name == "sgd" else {"momentum", "nesterov"}


class ScheduleSection(Section):
    """How the learning rate moves: a factor of `optimiser.learning_rate`, from the step alone."""

    name: Literal["constant", "exponential", "step", "one_cycle", "warmup_cosine"] = "constant"
    decay: Factor = 0.96  # exponential: the factor per epoch
    milestones: list[Positive] = []  # step: epochs
    factor: Factor = 0.1  # step: multiplied in at each milestone
    warmup: Fraction = 0.1  # one_cycle, warmup_cosine: the part of training in which the rate rises
    start: Fraction = 0.0  # one_cycle, warmup_cosine: the factor at the beginning
    end: Fraction = 0.0  # one_cycle, warmup_cosine: the factor at the end

    def unused(self) -> set[str]:
        settings = {
            "constant": set[str](),
            "exponential": {"decay"},
            "step": {"milestones", "factor"},
            "one_cycle": {"warmup", "start", "end"},
            "warmup_cosine": {"warmup", "start", "end"},
        }
        return set().union(*settings.values()) - settings[self.name]

    @model_validator(mode="after")
    def _milestones(self) -> ScheduleSection:
        if self.name == "step" and not self.milestones:
            raise ValueError("milestones: the schedule 'step' needs the epochs at which the rate drops")
        return self


class TrainingSection(Section):
    """How long, how many at once, and on what."""

    epochs: Count = 10
    batch_size: Count = 128  # of all processes and accumulation parts together
    seed: int = 0
    device: str = "auto"
    threads: Count | None = None  # of the CPU; small networks are faster with one
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32"
    compile: bool = False
    cuda_graphs: bool = False
    channels_last: bool = False
    accumulate: Count = 1  # parts into which a batch is cut; the gradient is that of the whole
    clip: Positive | None = None  # largest norm of the gradient
    ema: Fraction | None = None  # decay of the averaged weights, which are then the ones evaluated
    sharding: Literal["ddp", "fsdp"] = "ddp"  # used when torchrun starts several processes
    max_steps: Count | None = None  # stop early, for trying things

    @model_validator(mode="after")
    def _pairs(self) -> TrainingSection:
        if self.accumulate > self.batch_size:
            raise ValueError(f"accumulate: a batch of {self.batch_size} cannot be cut into {self.accumulate} parts")
        if self.device == "cpu" and self.precision in ("fp16", "tf32"):
            raise ValueError(f"precision: {self.precision!r} needs a GPU; a CPU has 'fp32' and 'bf16'")
        if self.device == "cpu" and self.cuda_graphs:
            raise ValueError("cuda_graphs: they need a GPU")
        if self.sharding == "fsdp" and self.precision == "fp16":
            raise ValueError("precision: 'fp16' scales its loss, which fsdp does not do here; take 'bf16'")
        return self


class CheckpointSection(Section):
    """When the state of a run is written, besides its beginning and its end."""

    every_minutes: Positive | None = 1.0
    every_steps: Count | None = None


class LoggingSection(Section):
    """What is written beside metrics.csv."""

    tensorboard: bool = True  # event files, if TensorBoard is installed


class EvaluationSection(Section):
    """What is measured once training is over. Uniform coefficients are always measured where a model has any."""

    batch_size: Count = 500
    # "validation" while settings are being chosen: the result is that of the validation images, test data stay unseen.
    on: Literal["test", "validation"] = "test"
    fast: bool = False  # accumulate master coefficients on the training set and test with them (Zhao 2019)
    # Pictures with two labels: the two highest scores, or every class whose probability is above one half.
    two_labels: Literal["top_two", "threshold"] = "top_two"
    pictures: bool = True
    speed_seconds: Annotated[float, Field(ge=0, le=600)] = 0.3  # in which images of each variant are counted
