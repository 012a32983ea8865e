"""What class capsules hold, seen through the decoder (Sabour et al. 2017, figures 3 to 5): reconstructions, perturbed
dimensions, and overlapping digits taken apart."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.analysis.figures import (
    Made,
    Named,
    Run,
    along,
    has_decoder,
    one_label,
    run_figure,
    takes_images,
    two_labels,
)
from capsroute.analysis.style import COLOURS, Figure, drawing, grid, label_outer, name_of, picture, show
from capsroute.data.augment import as_float
from capsroute.inference.collect import evaluating
from capsroute.models import ImageModel, ModelOutput


@dataclass(frozen=True, eq=False)
class Reconstructions(Named):
    """Images beside what the decoder makes of the predicted class capsule."""

    images: Tensor = field(metadata=along("image, channel, row, column"))
    reconstructions: Tensor = field(metadata=along("image, channel, row, column"))
    predictions: Tensor = field(metadata=along("image"))
    labels: Tensor | None = field(metadata=along("image"))
    errors: Tensor = field(metadata=along("image"))  # sum of squared differences


@dataclass(frozen=True, eq=False)
class Perturbations(Named):
    """Reconstructions while one dimension of one class capsule moves."""

    pictures: Tensor = field(metadata=along("image, dimension, step, channel, row, column"))
    images: Tensor = field(metadata=along("image, channel, row, column"))
    classes: Tensor = field(metadata=along("image"))  # whose capsule was moved
    steps: Tensor = field(metadata=along("step"))  # what was added


@dataclass(frozen=True, eq=False)
class Separation(Named):
    """Overlapping objects, each reconstructed from its own capsule."""

    images: Tensor = field(metadata=along("image, channel, row, column"))
    pictures: Tensor = field(metadata=along("image, object, channel, row, column"))
    classes: Tensor = field(metadata=along("image, object"))  # whose capsule each picture is made from
    labels: Tensor | None = field(metadata=along("image, object"))  # what is there
    # The objects before they were laid over each other.
    parts: Tensor | None = field(metadata=along("image, object, channel, row, column"))


def reconstructions(model: ImageModel, images: Tensor, labels: Tensor | None = None) -> Reconstructions:
    """Reconstruct images [b,c,h,w] from the capsule of the predicted class; labels [b] are only kept beside them.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.reconstructions(cr.create_model("capsnet_small", image_size=8), torch.rand(4, 1, 8, 8))
    >>> result.reconstructions.shape, result.size("image")
    (torch.Size([4, 1, 8, 8]), 4)
    """
    output, images = _run(model, images), as_float(images)
    predictions = output.scores.argmax(1)
    pictures = _decode(model)(output.poses, predictions)
    return Reconstructions(images, pictures, predictions, labels, (pictures - images).square().sum((1, 2, 3)))


def perturbations(
    model: ImageModel, images: Tensor, classes: Tensor | None = None, steps: Tensor | None = None
) -> Perturbations:
    """Add each of `steps` to each dimension of the capsule of `classes` [b] (None: the predicted ones) and decode.

    The steps of Sabour 2017, figure 4, are -0.25 to 0.25 in steps of 0.05. Dimensions are a pose's numbers, row by row.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.perturbations(cr.create_model("capsnet_small", image_size=8), torch.rand(2, 1, 8, 8))
    >>> result.pictures.shape
    torch.Size([2, 8, 11, 1, 8, 8])
    """
    steps = torch.arange(-5, 6) * 0.05 if steps is None else steps
    decode, output = _decode(model), _run(model, images)
    poses = output.poses
    assert poses is not None
    classes = output.scores.argmax(1) if classes is None else classes.to(poses.device)
    batch, parents, rows, columns = poses.shape
    dimensions, steps = rows * columns, steps.to(poses)
    shift = torch.eye(dimensions).to(poses)[:, None] * steps[:, None]  # [d, s, d]
    whose = F.one_hot(classes, parents).to(poses)[:, None, None, :, None]  # [b, 1, 1, j, 1]
    moved = poses.flatten(2)[:, None, None] + whose * shift[None, :, :, None]  # [b, d, s, j, a*o]
    names = classes[:, None, None].expand(moved.shape[:3])
    pictures = decode(moved.flatten(0, 2).unflatten(2, (rows, columns)), names.flatten())
    pictures = pictures.unflatten(0, (batch, dimensions, len(steps)))
    return Perturbations(pictures, images, classes, steps)


def separation(
    model: ImageModel, images: Tensor, labels: Tensor | None = None, parts: Tensor | None = None
) -> Separation:
    """Reconstruct each of the two most likely classes of images [b,c,h,w] from its own capsule alone.

    Labels [b,2] and the parts [b,2,h,w] that the images are made of are put in the order of the pictures.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.separation(cr.create_model("capsnet_small", image_size=8), torch.rand(3, 1, 8, 8))
    >>> result.pictures.shape
    torch.Size([3, 2, 1, 8, 8])
    """
    if model.num_classes < 2:
        raise ValueError(f"model: expected two classes or more, {model.name!r} has {model.num_classes}")
    if labels is not None and labels.shape != (len(images), 2):
        raise ValueError(f"labels: expected two for each of {len(images)} images, got {list(labels.shape)}")
    output, decode = _run(model, images), _decode(model)
    classes = output.scores.topk(2, dim=1).indices.sort(1).values  # [b, 2]
    pictures = torch.stack([decode(output.poses, column) for column in classes.unbind(1)], 1)
    parts = None if parts is None else parts.to(images.device).unsqueeze(2)
    if labels is not None:
        labels = labels.to(classes.device)
        swap = (labels == classes.flip(1)).any(1)  # the first label was found in the second place, or the other way
        labels = torch.where(swap[:, None], labels.flip(1), labels)
        if parts is not None:
            parts = torch.where(swap[:, None, None, None, None], parts.flip(1), parts)
    return Separation(images, pictures, classes, labels, parts)


def _run(model: ImageModel, images: Tensor) -> ModelOutput:
    with torch.no_grad(), evaluating(model):
        return model(images)


def _decode(model: ImageModel) -> Callable[..., Tensor]:
    if model.decoder is None:
        raise ValueError(f"model: expected one with a decoder, {model.name!r} has none")
    return torch.no_grad()(model.decoder)


@drawing
def draw_reconstructions(numbers: Reconstructions, classes: Sequence[str] | None = None) -> Figure:
    """Inputs above, reconstructions below; wrong predictions in another colour.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_reconstructions(cr.analysis.reconstructions(model, torch.rand(4, 1, 8, 8)))
    """
    count = numbers.size("image")
    figure = picture(0.75 * count + 0.8, 2.1)
    axes = grid(figure, 2, count)
    for at in range(count):
        prediction = int(numbers.predictions[at])
        wrong = numbers.labels is not None and int(numbers.labels[at]) != prediction
        above = "" if numbers.labels is None else name_of(int(numbers.labels[at]), classes)
        axes[0][at].set_title(above)
        show(axes[0][at], numbers.images[at])
        show(axes[1][at], numbers.reconstructions[at])
        axes[1][at].set_xlabel(name_of(prediction, classes), color=COLOURS[1] if wrong else "black")
    label_outer(axes[0][0], "input")
    label_outer(axes[1][0], "reconstruction\nof prediction")
    return figure


@drawing
def draw_perturbations(numbers: Perturbations, image: int = 0, classes: Sequence[str] | None = None) -> Figure:
    """A row for each dimension of one image's capsule, a column for each step.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_perturbations(cr.analysis.perturbations(model, torch.rand(1, 1, 8, 8)))
    """
    rows, columns = numbers.size("dimension"), numbers.size("step")
    figure = picture(0.42 * columns + 1.3, 0.42 * rows + 0.9)
    axes = grid(figure, rows, columns)
    for row in range(rows):
        for column in range(columns):
            show(axes[row][column], numbers.pictures[image, row, column])
        label_outer(axes[row][0], str(row + 1))
    for column, step in enumerate(numbers.steps.tolist()):
        axes[0][column].set_title(f"{step:+.2f}" if abs(step) > 1e-6 else "0", fontsize=7)
    figure.suptitle(
        f"added to one dimension of the capsule '{name_of(int(numbers.classes[image]), classes)}'", fontsize=9
    )
    figure.supylabel("dimension", fontsize=8)
    return figure


@drawing
def draw_separation(numbers: Separation, classes: Sequence[str] | None = None) -> Figure:
    """Overlapping digits above, what was made of them below: both in one picture, one colour per digit, and each alone.

    Where the digits before they were laid over each other are known, they are shown in the same colours.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_separation(cr.analysis.separation(model, torch.rand(4, 1, 8, 8)))
    """
    rows = {"input": numbers.images}
    if numbers.parts is not None:
        rows["the two digits"] = _coloured(numbers.parts)
    rows["both\nreconstructions"] = _coloured(numbers.pictures)
    rows["one capsule"], rows["other capsule"] = numbers.pictures.unbind(1)
    figure = picture(0.95 * numbers.size("image") + 0.9, 1.03 * len(rows))
    axes = grid(figure, len(rows), numbers.size("image"))
    for line, (text, images) in zip(axes, rows.items()):
        label_outer(line[0], text)
        for one, image in zip(line, images):
            show(one, image)
    labels = numbers.classes if numbers.labels is None else numbers.labels
    for at, (found, given) in enumerate(zip(numbers.classes.tolist(), labels.tolist())):
        there = [name for name in given if name >= 0]
        axes[0][at].set_title("" if numbers.labels is None else " + ".join(name_of(name, classes) for name in there))
        for line, name in zip(axes[-2:], found):
            line[at].set_xlabel(name_of(name, classes), color="black" if name in there else COLOURS[1])
    return figure


def _coloured(pairs: Tensor) -> Tensor:
    """Pairs [n,2,c,h,w] as one picture each [n,3,h,w]: the first in orange, the second in blue, both where both are."""
    first, second = pairs.float().mean(2).unbind(1)
    return torch.stack([first, 0.55 * (first + second).clamp(max=1), second], 1)


@run_figure(
    "reconstructions",
    "Reconstructions",
    "Test images (label above) and what the decoder makes of the capsule of the predicted class (below; wrong "
    "predictions in orange). After Sabour et al. 2017, figure 3.",
    takes_images,
    has_decoder,
    one_label,
    place=20,
)
def _reconstructions_of(run: Run) -> Made:
    sample = run.sample(10)
    numbers = reconstructions(run.model, sample.images, sample.labels)
    return numbers, draw_reconstructions(numbers, run.test.classes)


@run_figure(
    "perturbations",
    "Dimension perturbations",
    "Each row shows the reconstruction while one dimension of the predicted class capsule moves from -0.25 to 0.25. "
    "After Sabour et al. 2017, figure 4.",
    takes_images,
    has_decoder,
    place=21,
)
def _perturbations_of(run: Run) -> Made:
    numbers = perturbations(run.model, run.sample(1).images)
    return numbers, draw_perturbations(numbers, classes=run.test.classes)


@run_figure(
    "separation",
    "Overlapping digits taken apart",
    "Images of two digits, the digits before they were laid over each other, and each of the two most likely digits "
    "reconstructed from its own capsule (one orange, one blue; wrong ones named in orange). After Sabour et al. 2017, "
    "figure 5.",
    takes_images,
    has_decoder,
    two_labels,
    place=22,
)
def _separation_of(run: Run) -> Made:
    sample = run.sample(8)
    numbers = separation(run.model, sample.images, sample.labels, sample.parts)
    return numbers, draw_separation(numbers, run.test.classes)
