"""Trained weights that come with the package: which there are, loading them only if they are whole, and a card of each:
what a network is, what it was trained on and reaches, what it needs, and its limits, on one page."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsroute.models.base import CapsuleModel
from capsroute.models.files import WEIGHTS, load_weights, read_description
from capsroute.models.registry import create_model
from capsroute.naming import names_like

FOLDER = Path(__file__).parents[1] / "pretrained"
FACTS, MASTER = "facts.json", "master.safetensors"  # beside the files of `save_model`


@dataclass(frozen=True)
class Pretrained:
    """One set of trained weights: what made it, what it reaches, and the checksums of its files.

    Accuracies are in per cent of test images, by variant: `as_trained`, `fast` with master coefficients, `uniform`
    with equal ones. `accuracy` is what the run measured. `check` is of the files as they are stored, beside
    the run's own float32 weights, on so many images and on one machine.
    """

    tag: str
    model: str  # its registered name
    data: str
    classes: tuple[str, ...]
    normalise: tuple[tuple[float, ...], tuple[float, ...]] | None  # mean and deviation of each channel
    parameters: int
    stored: str  # dtype of the parameters on disk
    accuracy: dict[str, float]
    check: dict[str, Any]  # images, hardware, float32, stored
    recipe: str
    command: str
    seed: int
    train_seconds: float
    hardware: str
    files: dict[str, str]  # file -> its SHA-256

    @property
    def folder(self) -> Path:
        """Where the files lie; `cr.load_model` reads it."""
        return FOLDER / self.tag

    @property
    def has_master(self) -> bool:
        """Whether master coefficients come with the weights."""
        return MASTER in self.files

    def file(self, name: str = WEIGHTS) -> Path:
        """A file of the folder, once its checksum was found right; a ValueError with both checksums if it is not."""
        path = self.folder / name
        if name not in self.files:
            raise ValueError(f"name: {self.tag} comes with {', '.join(self.files)}, got {name!r}")
        if not path.is_file():
            raise ValueError(f"{path}: expected a file, found none; install capsroute again")
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != self.files[name]:
            raise ValueError(f"{path}: expected sha256 {self.files[name]}, found {found}; install capsroute again")
        return path


def list_pretrained(filter: str | None = None) -> list[str]:
    """Names of the models that come with trained weights: `cr.create_model(name, pretrained=True)` loads them.

    >>> import capsroute as cr
    >>> cr.list_pretrained("capsnet*")
    ['capsnet_max_min']
    """
    return names_like(filter, {entry.model for entry in _all()})


def pretrained_weights(name: str | None = None) -> list[Pretrained]:
    """What is known of the weights of a model, or of all models; the first is what `pretrained=True` means.

    >>> import capsroute as cr
    >>> [weights] = cr.models.pretrained_weights("capsnet_max_min")
    >>> weights.tag, weights.data, weights.accuracy["as_trained"]
    ('mnist-max-min', 'mnist', 99.42)
    """
    return [entry for entry in _all() if name in (None, entry.model)]


def pretrained_model(name: str, source: bool | str | os.PathLike[str], overrides: dict) -> CapsuleModel:
    """A model in evaluation mode with the weights of `source`: True, a tag, or a folder that `save_model` wrote.

    Where `overrides` ask for another number of classes, the classifier is a fresh one and all else trained.
    """
    entry = find_pretrained(name, source)
    folder = Path(source) if entry is None else entry.file().parent  # type: ignore[arg-type]
    description = read_description(folder)
    stored = description["arguments"] if description["name"] == name else {}
    arguments = {**stored, **overrides}
    num_classes = arguments.get("num_classes")
    if "num_classes" in stored:
        arguments["num_classes"] = stored["num_classes"]
    model = create_model(name, **arguments)
    model.set_preprocessing(**description.get("preprocessing", {}))
    load_weights(model, folder)
    if num_classes not in (None, model.num_classes):
        model.reset_classifier(num_classes)
    return model.eval()


def find_pretrained(name: str, source: bool | str | os.PathLike[str] = True) -> Pretrained | None:
    """The weights of model `name` that `source` means: True is the first, a string a tag; None if it is a folder.

    >>> from capsroute.models.pretrained import find_pretrained
    >>> find_pretrained("capsnet_max_min", "mnist-max-min").parameters
    944080
    """
    entries = pretrained_weights(name)
    chosen = next((entry for entry in entries if source in (True, entry.tag)), None)
    folder = "" if isinstance(source, bool) else os.fspath(source)
    if chosen is None and not Path(folder or os.devnull).is_dir():
        tags = ", ".join(repr(entry.tag) for entry in entries)
        known = f"there are {tags}" if tags else f"those of {', '.join(list_pretrained())} are"
        missing = f"no weights of {name!r} are published" + (f" as {folder!r}" if folder else "")
        raise ValueError(f"pretrained: {missing}; {known}. Or give a folder that save_model wrote")
    return chosen


def _all() -> list[Pretrained]:
    return [read_facts(path.parent) for path in sorted(FOLDER.glob(f"[!.]*/{FACTS}"))]


def read_facts(folder: Path) -> Pretrained:
    """What is written down in one folder of weights."""
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    normalise = facts["normalise"] and tuple(tuple(channels) for channels in facts["normalise"])
    return Pretrained(tag=folder.name, **{**facts, "classes": tuple(facts["classes"]), "normalise": normalise})


HEAD = """---
library_name: capsroute
pipeline_tag: image-classification
tags: [capsule-network]
---
"""
VARIANTS = {
    "as_trained": "as trained",
    "fast": "folded: master coefficients, no routing left",
    "uniform": "uniform coefficients",
}


def model_card(model: CapsuleModel, weights: Pretrained | None = None, name: str = "FOLDER") -> str:
    """The card of a model as Markdown; with `weights` of the package, what they reach and how they were made.

    >>> import capsroute as cr
    >>> card = cr.models.model_card(cr.create_model("capsnet_small", image_size=8))
    >>> card.splitlines()[6]
    '# capsnet_small'
    """
    preprocessing = getattr(model, "preprocessing", None)
    record = {} if preprocessing is None else preprocessing.record()
    classes = record.get("classes") or ["not named"]
    normalised = "mean and deviation inside the model" if record.get("mean") else "none"
    routings = sorted({str(layer.routing.config()) for layer in model.routed_layers().values()})
    lines = [
        HEAD,
        f"# {weights.tag if weights else model.name}\n",
        f"`{model.name}` of capsroute: {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"images {list(model.input_shape)} in [0, 1] or bytes.\n",
        f'```python\nimport capsroute as cr\n\nmodel = cr.load_model("{name}")\n```\n',
        f"- Classes: {', '.join(classes)}.",
        f"- Preprocessing: normalisation {normalised}; `cr.predict` resizes by {record.get('resize', '-')!r}, "
        f"polarity {record.get('polarity', '-')!r}.",
        f"- Routing: {'; '.join(routings) or 'none'}.",
    ]
    if weights is not None:
        lines += [
            f"- Data: {weights.data}. Made by `{weights.command}`, seed {weights.seed}, "
            f"{weights.train_seconds:.0f} s on {weights.hardware}; stored as {weights.stored}.",
            "\n| | run, per cent of the test images | as stored |\n|---|---|---|",
            *(
                f"| {VARIANTS.get(key, key)} | {value:.2f} | {weights.check['stored'].get(key, float('nan')):.2f} |"
                for key, value in weights.accuracy.items()
            ),
            f"\nAs stored: on {weights.check['images']:,} test images, {weights.check['hardware']}. One seed.",
        ]
    lines += [
        "\n## Limits\n",
        "It knows its classes and nothing else: an image of anything gets one of them. Scores that are capsule lengths "
        "are no calibrated probabilities. Weights: Apache-2.0; the data have terms of their own.",
    ]
    return "\n".join(lines) + "\n"
