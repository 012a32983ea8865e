"""What class probabilities become with given coefficients, image by image and class by class (Zhao et al. 2019,
figures 6 and 7), and how often each class is taken for each other one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from capsroute.analysis.correlations import check_counts
from capsroute.analysis.figures import Made, Named, Run, along, has_master, one_label, run_figure, takes_images
from capsroute.analysis.style import (
    COLOURS,
    Figure,
    colour_bar,
    colour_map,
    drawing,
    grid,
    name_of,
    picture,
    short_names,
    show,
)
from capsroute.inference.collect import as_batches, check_labels, evaluating


@dataclass(frozen=True, eq=False)
class ClassProbabilities(Named):
    """Class probabilities of the same images under several routings (figure 6)."""

    probabilities: Tensor = field(metadata=along("routing, image, class"))
    labels: Tensor = field(metadata=along("image"))
    routings: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class TuningCurves(Named):
    """Class probabilities averaged over the images of each class, under several routings (figure 7)."""

    probabilities: Tensor = field(metadata=along("routing, label, class"))
    counts: Tensor = field(metadata=along("label"))
    routings: tuple[str, ...]


def class_probabilities(models: Mapping[str, nn.Module], images: Tensor, labels: Tensor) -> ClassProbabilities:
    """What each model says about images [b,c,h,w]; models are those of the routings to compare (figure 6).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> models = {"as trained": model, "uniform": cr.inference.with_coefficients(model, "uniform")}
    >>> cr.analysis.class_probabilities(models, torch.rand(5, 1, 8, 8), torch.arange(5)).probabilities.shape
    torch.Size([2, 5, 10])
    """
    _check_models(models)
    found = torch.stack([_probabilities(model, images).cpu() for model in models.values()])
    return ClassProbabilities(found, labels.cpu(), tuple(models))


def tuning_curves(models: Mapping[str, nn.Module], batches: Iterable) -> TuningCurves:
    """Average class probabilities over the images of each class, for each model (figure 7).

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> curves = cr.analysis.tuning_curves({"as trained": model}, cr.data.load("digits", "test"))
    >>> curves.probabilities.shape, int(curves.counts.sum())
    (torch.Size([1, 10, 10]), 359)
    """
    _check_models(models)
    classes = int(next(iter(models.values())).num_classes)  # type: ignore[arg-type]
    sums, counts = torch.zeros(len(models), classes, classes, dtype=torch.float64), torch.zeros(classes).long()
    for images, labels, *_ in as_batches(batches):
        labels = check_labels(labels, images, classes).cpu()
        counts += torch.bincount(labels, minlength=classes)
        for row, model in enumerate(models.values()):
            sums[row].index_add_(0, labels, _probabilities(model, images).cpu().double())
    check_counts(counts)
    return TuningCurves(sums / counts[:, None], counts, tuple(models))


def _check_models(models: Mapping[str, nn.Module]) -> None:
    if not isinstance(models, Mapping) or not models:
        raise ValueError(f"models: expected models by name, {{'as trained': model}}, got {type(models).__name__}")


def _probabilities(model: nn.Module, images: Tensor) -> Tensor:
    """Scores [b,classes] as probabilities: lengths are such already, logits become so by softmax."""
    with evaluating(model), torch.no_grad():
        scores = model(images.to(next(model.parameters()).device)).scores
    return scores.softmax(1) if model.score_kind == "logit" else scores


@drawing
def draw_class_probabilities(
    numbers: ClassProbabilities, images: Tensor, classes: Sequence[str] | None = None
) -> Figure:
    """A column for each of the images [b,c,h,w]: the image, and below its class probabilities under each routing.

    >>> import torch, capsroute as cr
    >>> model, images = cr.create_model("capsnet_small", image_size=8), torch.rand(5, 1, 8, 8)
    >>> numbers = cr.analysis.class_probabilities({"as trained": model}, images, torch.arange(5))
    >>> figure = cr.analysis.draw_class_probabilities(numbers, images)
    """
    rows, columns, count = (numbers.size(axis) for axis in ("routing", "image", "class"))
    figure = picture(1.35 * columns + 0.6, 1.1 + 1.15 * rows)
    axes = grid(figure, 1 + rows, columns)
    for column in range(columns):
        label = int(numbers.labels[column])
        show(axes[0][column], images[column])
        axes[0][column].set_title(name_of(label, classes))
        for row in range(rows):
            bars = axes[1 + row][column]
            colours = [COLOURS[0] if at == label else "0.6" for at in range(count)]
            bars.bar(range(count), numbers.probabilities[row, column].tolist(), color=colours)
            bars.set(ylim=(0, 1), yticks=[0, 0.5, 1])
            ticks = range(count) if count <= 10 else [label]
            bars.set_xticks(ticks, [name_of(at, classes) for at in ticks], rotation=0 if short_names(classes) else 90)
            bars.tick_params(labelsize=6, labelleft=column == 0, labelbottom=row == rows - 1)
    for row, name in enumerate(numbers.routings):
        axes[1 + row][0].set_ylabel(f"{name}\nprobability")
    return figure


@drawing
def draw_tuning_curves(numbers: TuningCurves, classes: Sequence[str] | None = None) -> Figure:
    """Mean class probabilities of the images of each class, a panel for each routing (figure 7).

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.tuning_curves({"as trained": model}, cr.data.load("digits", "test"))
    >>> figure = cr.analysis.draw_tuning_curves(numbers)
    """
    panels, count = numbers.size("routing"), numbers.size("class")
    figure = picture(2.9 * panels + 0.5, 2.6 if short_names(classes) else 3.1)
    axes = grid(figure, 1, panels, sharey=True)[0]
    shades = colour_map("viridis")(torch.linspace(0, 0.85, count).numpy())
    for one, routing, curves in zip(axes, numbers.routings, numbers.probabilities):
        for label, (curve, shade) in enumerate(zip(curves.tolist(), shades)):
            dash = ("-", "--", ":")[label % 3]
            one.plot(range(count), curve, color=shade, linestyle=dash, marker=".", markersize=4)
            # Each curve is named at the class it is about, where it should have its peak; long names have no room.
            if count <= 20 and short_names(classes):
                text = name_of(label, classes)
                one.annotate(text, (label, curve[label]), (0, 3), textcoords="offset points", ha="center", color=shade)
        one.set(title=routing, xlabel="class capsule", ylim=(0, 1.08))
        one.grid(alpha=0.25, linewidth=0.5)
        if count <= 20:
            ticks = [name_of(at, classes) for at in range(count)]
            one.set_xticks(range(count), ticks, rotation=0 if short_names(classes) else 90)
    axes[0].set_ylabel("mean probability")
    return figure


@run_figure(
    "class_probabilities",
    "Class probabilities, dynamic and fast",
    "What the network says about five test images with its own routing and with master coefficients. After Zhao et "
    "al. 2019, figure 6.",
    takes_images,
    one_label,
    has_master,
    place=33,
)
def _class_probabilities_of(run: Run) -> Made:
    sample = run.sample(5)
    numbers = class_probabilities(run.shown_variants(), sample.images, sample.labels)
    return numbers, draw_class_probabilities(numbers, sample.images, run.test.classes)


@run_figure(
    "tuning_curves",
    "Tuning curves, dynamic and fast",
    "Class probabilities averaged over the images of each class, of {10000 test} images. After Zhao et al. 2019, "
    "figure 7.",
    takes_images,
    one_label,
    has_master,
    place=34,
)
def _tuning_curves_of(run: Run) -> Made:
    numbers = tuning_curves(run.shown_variants(), run.test_batches(10000))
    return numbers, draw_tuning_curves(numbers, run.test.classes)


@dataclass(frozen=True, eq=False)
class Confusions(Named):
    """Numbers of images by what they are and what they were taken for."""

    counts: Tensor = field(metadata=along("label, prediction"))


def confusions(model: nn.Module, batches: Iterable) -> Confusions:
    """Count the predictions of a model over `(images [b,c,h,w], labels [b])`, or a `cr.data.ImageSet`.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> int(cr.analysis.confusions(model, cr.data.load("digits", "test")).counts.sum())
    359
    """
    device = next(model.parameters()).device
    with evaluating(model), torch.no_grad():
        scored = ((model(images.to(device)).scores, labels) for images, labels, *_ in as_batches(batches))
        return _counted(scored, int(model.num_classes))  # type: ignore[arg-type]


def _counted(scored: Iterable[tuple[Tensor, Tensor]], classes: int) -> Confusions:
    counts = torch.zeros(classes * classes, dtype=torch.int64)
    for scores, labels in scored:
        labels = check_labels(labels, scores, classes).cpu()
        counts += torch.bincount(labels * classes + scores.argmax(1).cpu(), minlength=classes * classes)
    if not counts.any():
        raise ValueError("batches: expected at least one image, got none")
    return Confusions(counts.view(classes, classes))


@drawing
def draw_confusions(numbers: Confusions, classes: Sequence[str] | None = None) -> Figure:
    """Wrong answers alone: right ones are so many that nothing else could be seen.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_confusions(cr.analysis.confusions(model, cr.data.load("digits", "test")))
    """
    wrong = numbers.counts.double().fill_diagonal_(0)
    figure = picture(4.4, 3.7)
    ((axes,),) = grid(figure, 1, 1)
    drawn = axes.imshow(wrong.numpy(), cmap="magma")
    if len(wrong) <= 20:
        names = [name_of(at, classes) for at in range(len(wrong))]
        axes.set_xticks(range(len(wrong)), names, rotation=90)
        axes.set_yticks(range(len(wrong)), names)
    axes.set(xlabel="predicted", ylabel="true")
    colour_bar(figure, drawn, axes, "images")
    return figure


@run_figure(
    "confusions",
    "Confusions",
    "Wrong answers on the test images: what they are, and what they were taken for.",
    one_label,
    place=15,
)
def _confusions_of(run: Run) -> Made:
    with evaluating(run.model), torch.no_grad():
        scored = ((run.scores(inputs), labels) for inputs, labels, *_ in run.batches(run.test))
        numbers = _counted(scored, int(run.model.num_classes))
    return numbers, draw_confusions(numbers, run.test.classes)
