"""Pictures of a run: the training curve, reconstructions beside their inputs, confusions, master coefficients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor, nn

from capsroute.inference.collect import evaluating
from capsroute.training.data import Splits, plain_batches
from capsroute.training.evaluation import call_model
from capsroute.training.recipe import Recipe
from capsroute.training.run_folder import RunFolder

__all__ = ["draw_pictures"]

SHOWN = 10  # images in a row of reconstructions


def draw_pictures(
    folder: RunFolder, recipe: Recipe, model: nn.Module | None, splits: Splits | None
) -> list[tuple[str, str]]:
    """Draw what the run has something to show for; (file name, title) of each picture."""
    drawn = [draw_curves(folder.path / "curves.png", folder.read_metrics())]
    if model is None or splits is None or not splits.test:
        # Drawn when the run ended, and still there.
        kept = {"reconstructions.png": "Reconstructions", "confusion.png": "Confusions", "master.png": "Coefficients"}
        return [*drawn, *((name, title) for name, title in kept.items() if (folder.path / name).is_file())]
    device = next(iter(model.parameters())).device
    test = next(iter(splits.test.values()))
    batches = plain_batches(test, splits, recipe, device)
    with evaluating(model), torch.no_grad():
        if recipe.loss.reconstruction:
            images = next(iter(batches))[0][:SHOWN]
            path = folder.path / "reconstructions.png"
            drawn.append(draw_reconstructions(path, images, model(images).reconstruction))
        if test.labels.dim() == 1:
            confusion = _confusion(model, batches, len(test.classes))
            drawn.append(draw_confusion(folder.path / "confusion.png", confusion, test.classes))
    if folder.master.is_file():
        drawn.append(draw_master(folder.path / "master.png", folder.master))
    return drawn


def draw_curves(path: Path, history: list[dict[str, float]]) -> tuple[str, str]:
    """Loss and accuracy over the epochs."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part in ("train", "validation"):
            key = f"{part}_{quantity}"
            if history and key in history[0]:
                axes.plot([row["epoch"] for row in history], [row[key] for row in history], label=part, marker=".")
        axes.set(xlabel="epoch", ylabel=quantity)
        axes.legend()
    return _save(figure, path, "Training")


def draw_reconstructions(path: Path, inputs: Tensor, reconstructions: Tensor) -> tuple[str, str]:
    """Inputs in the upper row, what the decoder makes of their capsules below."""
    figure = Figure(figsize=(len(inputs), 2.2), layout="constrained")
    rows = figure.subplots(2, len(inputs), squeeze=False)
    for row, images in zip(rows, (inputs, reconstructions), strict=True):
        for axes, image in zip(row, images.float().cpu().numpy(), strict=True):
            shown = image.transpose(1, 2, 0) if len(image) == 3 else image[0]
            axes.imshow(shown, cmap="gray", vmin=0, vmax=1)
            axes.set_axis_off()
    return _save(figure, path, "Reconstructions: test images above, what their capsules say below")


def draw_confusion(path: Path, confusion: Tensor, classes: tuple[str, ...]) -> tuple[str, str]:
    """How often each class was taken for each other one; right answers are left out, or nothing else could be seen."""
    wrong = confusion.float().fill_diagonal_(0)
    figure = Figure(figsize=(4.6, 4), layout="constrained")
    axes = figure.subplots()
    figure.colorbar(axes.imshow(wrong.numpy(), cmap="magma"), ax=axes)
    axes.set(xlabel="predicted", ylabel="true")
    if len(classes) <= 20:
        axes.set_xticks(range(len(classes)), classes, rotation=90)
        axes.set_yticks(range(len(classes)), classes)
    return _save(figure, path, "Confusions: wrong answers on test images")


def draw_master(path: Path, stored: Path) -> tuple[str, str]:
    """Master coefficients [i,j] of each layer: which children count for which parent."""
    from capsroute.inference import MasterCoefficients

    master = MasterCoefficients.load(stored)
    figure = Figure(figsize=(8, 2.2 * len(master)), layout="constrained")
    for axes, name in zip(figure.subplots(len(master), 1, squeeze=False)[:, 0], master, strict=True):
        figure.colorbar(axes.imshow(master[name].T.numpy(), aspect="auto", interpolation="nearest"), ax=axes)
        axes.set(title=name, xlabel="child", ylabel="parent")
    return _save(figure, path, "Master coefficients")


def _confusion(model: nn.Module, batches: Any, classes: int) -> Tensor:
    confusion = torch.zeros(classes * classes, dtype=torch.int64)
    for inputs, labels in batches:
        pairs = labels * classes + call_model(model, inputs).scores.argmax(1)
        confusion += torch.bincount(pairs.cpu(), minlength=classes * classes)
    return confusion.view(classes, classes)  # [true, predicted]


def _save(figure: Figure, path: Path, title: str) -> tuple[str, str]:
    FigureCanvasAgg(figure).print_png(str(path))
    return path.name, title
