"""A finished run becomes weights of the package: stored small, measured again as stored, and listed."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsroute.data import ImageSet
from capsroute.data.batches import Epochs
from capsroute.files import write_atomically
from capsroute.inference import MasterCoefficients
from capsroute.models import Pretrained, load_model, save_model
from capsroute.models.pretrained import FACTS, FOLDER, MASTER
from capsroute.training import Recipe, Run, evaluate
from capsroute.training.environment import describe_environment

TOLERANCE = 0.1  # points of accuracy that storing may cost


def bundle(
    run: str | Path,
    tag: str,
    stored: str = "bfloat16",
    images: int | None = None,
    device: str = "cpu",
    folder: str | Path = FOLDER,
    say: Callable[[str], None] = print,
) -> Pretrained:
    """Put the best weights of a finished run into the package under `tag`, with its master coefficients if it has any.

    Parameters are rounded to `stored`; buffers (statistics of batch normalisation) stay as they are. The first `images`
    images of the test set (None: all) are gone through with the run's own weights and with the stored ones, in float32
    on `device`: a loss of more than 0.1 points is an error. The folder appears whole or not at all; one that was made
    elsewhere can be copied beside the others.
    """
    opened, folder = Run(run, device), Path(folder)
    facts, environment = (opened.folder.read(name) for name in ("result.json", "environment.json"))
    recipe, model, master = opened.recipe, opened.model, opened.master
    test = _first(opened.test, images)
    batches = opened.batches(test)
    aside = folder / f".{tag}.new"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        check: dict[str, Any] = {
            "images": len(test),
            "hardware": describe_environment(torch.device(device))["hardware"],
        }
        check["float32"] = _per_cent(model, batches, recipe)
        _write(model.cpu(), master, getattr(torch, stored), aside)
        stored_run = Run(run, device, recipe=recipe, model=load_model(aside).to(device), splits=opened.splits)
        check["stored"] = {name: _per_cent(made, batches, recipe) for name, made in stored_run.variants().items()}
        say(f"{tag}: {check}")
        if check["stored"]["as_trained"] < check["float32"] - TOLERANCE:
            raise ValueError(f"stored: {stored} costs more than {TOLERANCE} points: {check}")
        weights = Pretrained(
            tag=tag,
            model=str(model.name),
            data=str(recipe.data.name),
            classes=tuple(opened.splits.train.classes),
            normalise=_normalise(model),
            parameters=facts["parameters"],
            stored=stored,
            accuracy={name: round(100 * value["accuracy"], 2) for name, value in facts["test"].items()},
            check=check,
            recipe=facts["recipe"],
            command=_command(facts, environment),
            seed=facts["seed"],
            train_seconds=round(facts["train_seconds"], 1),
            hardware=environment["hardware"],
            files={path.name: _checksum(path) for path in sorted(aside.glob("*.safetensors"))},
        )
        _write_facts(weights, aside)
        shutil.rmtree(folder / tag, ignore_errors=True)
        os.replace(aside, folder / tag)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return weights


def _first(images: Any, count: int | None) -> Any:
    if count is None or count >= len(images):
        return images
    if not isinstance(images, ImageSet):
        raise ValueError(f"images: only sets of images can be cut to the first {count}")
    return replace(images, images=images.images[:count], labels=images.labels[:count], metadata={})


def _write(model: nn.Module, master: MasterCoefficients | None, dtype: torch.dtype, folder: Path) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    save_model(model, folder)  # type: ignore[arg-type]
    if master is not None:
        master.save(folder / MASTER)


def _per_cent(model: nn.Module, batches: Epochs, recipe: Recipe) -> float:
    return round(100 * evaluate(model, batches, recipe.evaluation.two_labels)["accuracy"], 2)


def _normalise(model: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    record = model.preprocessing.record()
    return None if record["mean"] is None else (tuple(record["mean"]), tuple(record["deviation"]))


def _command(facts: dict[str, Any], environment: dict[str, Any]) -> str:
    """What trains it again: the command as it was given, less where its output went."""
    given = environment["command"][1:]
    if given[:1] != ["train"]:
        given = ["train", facts["recipe"], "--set", f"training.seed={facts['seed']}"]
    if "--out" in given:
        place = given.index("--out")
        given = given[:place] + given[place + 2 :]
    return " ".join(["capsroute", *given])


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_facts(weights: Pretrained, folder: Path) -> None:
    facts = asdict(weights)
    del facts["tag"]  # the folder's name says it
    write_atomically(folder / FACTS, (json.dumps(facts, indent=2) + "\n").encode())


def main() -> None:
    """Bundle one run: `python -m tools.bundle RUN TAG`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", help="a finished run folder, with best/ and result.json")
    parser.add_argument("tag", help="what its weights are called, such as cifar10-routing-pooling")
    parser.add_argument("--stored", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--images", type=int, help="measure on so many test images; otherwise on all")
    parser.add_argument("--device", default="cpu", help="where to measure")
    parser.add_argument("--folder", default=FOLDER, help="where the folder TAG goes; otherwise into the package")
    print(bundle(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
