"""Accuracy and loss by epoch, run beside run: convergence by routing iterations (Tsai et al. 2020, figure 4, top)."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from capsroute.analysis.named import Named

__all__ = ["TrainingCurves", "read_metrics", "training_curves"]

QUANTITIES = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")


@dataclass(frozen=True, eq=False)
class TrainingCurves(Named):
    """What runs wrote down after each epoch; NaN where a run was shorter or did not measure."""

    axes: ClassVar = dict.fromkeys(QUANTITIES, ("run", "epoch")) | {"epochs": ("epoch",)}
    epochs: Tensor
    train_loss: Tensor
    validation_loss: Tensor
    train_accuracy: Tensor
    validation_accuracy: Tensor
    runs: tuple[str, ...]


def training_curves(runs: Mapping[str, str | os.PathLike[str]]) -> TrainingCurves:
    """The metrics of run folders, by the name that each is to have in the picture.

    >>> import tempfile, capsroute as cr
    >>> quick = cr.training.load_recipe("quickstart", ["training.max_steps=1", "evaluation.pictures=false"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = cr.training.fit(None, None, quick, folder, reporter=cr.training.SilentReporter())
    ...     curves = cr.analysis.training_curves({"3 iterations": folder})
    >>> curves.runs, curves.train_loss.shape
    (('3 iterations',), torch.Size([1, 1]))
    """
    histories = {name: read_metrics(folder) for name, folder in runs.items()}
    empty = [name for name, rows in histories.items() if not rows]
    if empty or not histories:
        raise ValueError(f"runs: expected run folders with a metrics.csv, {', '.join(empty) or 'none'} given")
    epochs = sorted({int(row["epoch"]) for rows in histories.values() for row in rows})
    values = {name: torch.full((len(runs), len(epochs)), torch.nan, dtype=torch.float64) for name in QUANTITIES}
    for at, rows in enumerate(histories.values()):
        for row in rows:
            for name in set(QUANTITIES) & set(row):
                values[name][at, epochs.index(int(row["epoch"]))] = row[name]
    return TrainingCurves(torch.tensor(epochs), **values, runs=tuple(histories))


def read_metrics(folder: str | os.PathLike[str]) -> list[dict[str, float]]:
    """The lines of metrics.csv in a run folder, one an epoch; none where there is no such file."""
    path = Path(folder) / "metrics.csv"
    if not path.is_file():
        return []
    with path.open(newline="") as stream:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(stream)]
