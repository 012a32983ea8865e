"""Accuracy and loss by epoch, run beside run (Tsai et al. 2020, figure 4, top)."""

import csv
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from capsroute.analysis.figures import Made, Named, Run, along, run_figure
from capsroute.analysis.style import Figure, drawing, grid, picture, plot

QUANTITIES = ("train_loss", "validation_loss", "train_accuracy", "validation_accuracy")


@dataclass(frozen=True, eq=False)
class TrainingCurves(Named):
    """What runs wrote down after each epoch; NaN where a run was shorter or did not measure."""

    epochs: Tensor = field(metadata=along("epoch"))
    train_loss: Tensor = field(metadata=along("run, epoch"))
    validation_loss: Tensor = field(metadata=along("run, epoch"))
    train_accuracy: Tensor = field(metadata=along("run, epoch"))
    validation_accuracy: Tensor = field(metadata=along("run, epoch"))
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


@drawing
def draw_training_curves(numbers: TrainingCurves) -> Figure:
    """Loss and accuracy by epoch: one run in training and validation, or several runs beside each other, in
    validation where any of them has it.

    >>> import torch, capsroute as cr
    >>> curve = torch.tensor([[0.5, 0.2]])
    >>> numbers = cr.analysis.TrainingCurves(torch.tensor([1, 2]), curve, curve, 1 - curve, 1 - curve, ("run",))
    >>> figure = cr.analysis.draw_training_curves(numbers)
    """
    from matplotlib.ticker import MaxNLocator

    figure = picture(6.2, 2.5)
    axes = grid(figure, 1, 2)[0]
    rows = (
        ("loss", numbers.train_loss, numbers.validation_loss),
        ("accuracy (%)", 100 * numbers.train_accuracy, 100 * numbers.validation_accuracy),
    )
    for one, (label, train, validation) in zip(axes, rows):
        curves = {"training": train[0], "validation": validation[0]}
        if len(numbers.runs) > 1:
            unseen = not bool(validation.isnan().all())
            label = f"{'validation' if unseen else 'training'} {label}"
            curves = dict(zip(numbers.runs, validation if unseen else train))
        curves = {name: curve for name, curve in curves.items() if not bool(curve.isnan().all())}
        if curves:
            plot(one, numbers.epochs, torch.stack(list(curves.values())), list(curves))
            one.legend()
        one.set(xlabel="epoch", ylabel=label)
        one.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@run_figure(
    "training",
    "Training",
    "Loss and accuracy after each epoch; of several runs, on validation images where they have any. After Tsai et al. "
    "2020, figure 4.",
    place=10,
)
def _training_of(run: Run) -> Made:
    numbers = training_curves({folder.name: folder for folder in (run.folder.path, *run.beside)})
    return numbers, draw_training_curves(numbers)
