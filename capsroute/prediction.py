"""`predict`: images of any kind and size in, names of classes with their probabilities out."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from capsroute.bars import bar
from capsroute.data.errors import DataError, DataWarning
from capsroute.data.images.listing import pictures_below
from capsroute.data.images.pictures import SUFFIXES, fit_pixels, from_pillow, read_picture
from capsroute.extras import named_extra
from capsroute.models.preprocessing import Preprocessing, frame, with_polarity

__all__ = ["Classifier", "Prediction", "find_pictures", "open_classifier", "predict"]

Source = str | os.PathLike[str]


class Prediction(NamedTuple):
    """What a network says of one image: classes, the likeliest first, or the problem that it has."""

    source: str  # the file, or the number of the image among those given
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    problem: str | None = None

    @property
    def label(self) -> str | None:
        """The likeliest class."""
        return self.classes[0] if self.classes else None

    @property
    def probability(self) -> float | None:
        """Of the likeliest class."""
        return self.probabilities[0] if self.probabilities else None


@dataclass(frozen=True)
class Classifier:
    """A network, or the file that one was exported to, with all that telling classes from images needs."""

    scores: Callable[[Tensor], Tensor]  # [b,c,h,w] in [0, 1] -> [b,classes]
    shape: tuple[int, int, int]
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    kind: str  # of the scores: "length", "probability" or "logit"
    several: bool  # whether several classes can be in an image

    def probabilities(self, images: Tensor) -> Tensor:
        """[b,classes]; lengths of capsules are taken as they are, and need not sum to one."""
        scores = self.scores(images).float()
        if self.kind != "logit":
            return scores.clamp(0, 1)
        return scores.sigmoid() if self.several else scores.softmax(1)


@named_extra
def predict(
    model: nn.Module | Classifier | Source,
    images: Any,
    top: int | None = 1,
    batch_size: int = 64,
    strict: bool = False,
    progress: bool | None = None,
) -> list[Prediction]:
    """What is in these images: one `Prediction` an image, in their order.

    Args:
        model: a model, what `cr.load_model` takes (a run folder, a saved model, packaged weights, a Hub name), or
            a file that `capsroute export` wrote.
        images: a picture file, a folder of them, a PIL image, an array or a tensor, or a list of any of these, each of
            any size. Arrays are [h,w], [h,w,c] or [c,h,w], or several of these at once; tensors [c,h,w] or [b,c,h,w].
            Bytes, 16 bits, or floats in [0, 1].
        top: how many classes to name; None for all.
        batch_size: images that go through the network at once.
        strict: raise at the first image that cannot be read, instead of a `Prediction` that says its `problem`.
        progress: a bar; None for one where there is a terminal and more than one batch.

    Example:
        >>> import capsroute as cr
        >>> seven = cr.data.load("digits", "test").images[0]
        >>> [found] = cr.predict("mnist-max-min", seven)
        >>> found.label in "0123456789", 0 <= found.probability <= 1
        (True, True)
    """
    classifier = model if isinstance(model, Classifier) else open_classifier(model)
    count = len(classifier.classes) if top is None else min(top, len(classifier.classes))
    if count < 1 or batch_size < 1:
        raise ValueError(f"top, batch_size: expected whole numbers >= 1, got {top!r} and {batch_size!r}")
    given = list(_listed(images))
    found: list[Prediction] = []
    with bar("images", len(given), len(given) > batch_size if progress is None else progress) as advance:
        for start in range(0, len(given), batch_size):
            found += _batch(classifier, given[start : start + batch_size], count, strict)
            advance(min(batch_size, len(given) - start))
    bad = [prediction.problem for prediction in found if prediction.problem]
    if bad:
        first = "; ".join(str(problem) for problem in bad[:3])
        warnings.warn(f"{len(bad)} of {len(found)} images left out: {first}", DataWarning, stacklevel=2)
    return found


def _batch(classifier: Classifier, given: Sequence[tuple[str, Any]], count: int, strict: bool) -> list[Prediction]:
    framed: list[Tensor | DataError] = []
    for source, image in given:
        try:
            framed.append(_framed(source, image, classifier))
        except DataError as error:
            if strict:
                raise
            framed.append(error)
    whole = [image for image in framed if isinstance(image, Tensor)]
    with torch.no_grad():
        rows = iter(classifier.probabilities(torch.stack(whole)).cpu() if whole else ())
    found = []
    for (source, _), image in zip(given, framed):
        if isinstance(image, DataError):
            found.append(Prediction(source, problem=str(image)))
            continue
        values, places = next(rows).topk(count)
        names = tuple(classifier.classes[place] for place in places.tolist())
        found.append(Prediction(source, names, tuple(values.tolist())))
    return found


def _listed(images: Any) -> Iterator[tuple[str, Any]]:
    """Each image with what it is called."""
    if isinstance(images, str | os.PathLike):
        path = Path(images)
        yield from ((str(file), file) for file in (find_pictures(path) if path.is_dir() else [path]))
    elif isinstance(images, Tensor | np.ndarray) and images.ndim == 4:
        yield from ((str(number), image) for number, image in enumerate(images))
    elif (
        isinstance(images, Iterable) and not isinstance(images, Tensor | np.ndarray) and not hasattr(images, "getexif")
    ):
        for number, image in enumerate(images):
            several = isinstance(image, Tensor | np.ndarray) and image.ndim == 4
            for source, one in _listed(image):
                named = isinstance(image, str | os.PathLike)
                yield source if named else f"{number}.{source}" if several else str(number), one
    else:
        yield "0", images


def find_pictures(folder: Path) -> list[Path]:
    """The picture files in a folder and in those within it, as training finds them, by name; a DataError where there
    are none."""
    found = sorted(folder / name for name in pictures_below(folder))
    if not found:
        raise DataError(f"{folder}: expected pictures ({', '.join(SUFFIXES)}), found none")
    return found


def _framed(source: str, image: Any, classifier: Classifier) -> Tensor:
    """One image as the network takes it, [c,h,w] in [0,1]."""
    shape, preprocessing = classifier.shape, classifier.preprocessing
    # As pictures are read for training: scaled to cover the size, the rest cut off.
    covered = (round(shape[1] / preprocessing.crop), round(shape[2] / preprocessing.crop))
    covers = preprocessing.resize == "cover"
    if isinstance(image, str | os.PathLike) or hasattr(image, "getexif"):
        if shape[0] not in (1, 3):
            raise DataError(f"{source}: expected an array, for the network takes {shape[0]} channels")
        size = covered if covers else None
        read = read_picture if isinstance(image, str | os.PathLike) else lambda *a: from_pillow(a[0], source, *a[1:])
        return frame(torch.from_numpy(read(image, size, shape[0])) / 255, shape, preprocessing)
    image = _as_tensor(source, image, shape[0])
    if covers and tuple(image.shape) != shape and image.shape[0] == shape[0]:
        pixels = (image * 255).round().to(torch.uint8).numpy()
        return frame(torch.from_numpy(fit_pixels(pixels, covered)) / 255, shape, preprocessing)
    if covers and tuple(image.shape) == shape:
        return with_polarity(image, preprocessing.polarity) if shape[0] == 1 else image
    return frame(image, shape, preprocessing)


def _as_tensor(source: str, image: Any, channels: int) -> Tensor:
    """An array or a tensor as floats [c,h,w] in [0,1]."""
    first = isinstance(image, Tensor)  # torch puts channels first, others last
    if isinstance(image, Tensor):
        image = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
    array = np.asarray(image)
    if array.dtype.kind not in "uif":
        found = f"one of {array.dtype}" if isinstance(image, np.ndarray) else type(image).__name__
        raise DataError(f"{source}: expected a picture, an array or a tensor of numbers, found {found}")
    if 0 in array.shape:
        raise DataError(f"{source}: expected at least one pixel, found shape {array.shape}")
    largest = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(array.dtype, 1.0)
    whole = array.dtype.kind in "ui" and largest == 1.0
    values = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32) / np.float32(largest))
    if whole or not bool(((values >= -1e-6) & (values <= 1 + 1e-6)).all()):
        found = f"{array.dtype}" if whole else f"{values.min()} to {values.max()}"
        raise DataError(f"{source}: expected bytes (uint8), 16 bits (uint16), or floats in [0, 1], found {found}")
    if values.ndim == 2:
        return values[None].clamp(0, 1)
    allowed = {1, 3, channels}
    if values.ndim == 3 and values.shape[0] in allowed and (first or values.shape[2] not in {*allowed, 4}):
        return values.clamp(0, 1)
    if values.ndim == 3 and values.shape[2] in {*allowed, 4}:
        values = values.movedim(2, 0).clamp(0, 1)
        return values if len(values) in allowed else _on_white(values)
    raise DataError(f"{source}: expected [h,w], [h,w,c] or [c,h,w], found shape {tuple(values.shape)}")


def _on_white(values: Tensor) -> Tensor:
    """Colours and their opacity [4,h,w] as colours [3,h,w]: what is transparent is laid on white, as in files."""
    return values[3] * values[:3] + (1 - values[3])


def open_classifier(model: nn.Module | Source) -> Classifier:
    """A model, what `cr.load_model` takes, or an exported ONNX or torch.export file, ready to tell classes."""
    if isinstance(model, nn.Module):
        return _of_model(model)
    path = Path(model)
    if path.suffix in (".onnx", ".pt2") and path.is_file():
        return _of_file(path)
    from capsroute.models import load_model

    if path.suffix == ".safetensors" and path.is_file() and not path.with_name("config.json").is_file():
        from capsroute.inference import load_exported

        return _of_model(load_exported(path))  # which also takes folded ones
    return _of_model(load_model(model))


def _of_model(model: nn.Module) -> Classifier:
    shape = tuple(getattr(model, "input_shape", ()))
    preprocessing = getattr(model, "preprocessing", None)
    if len(shape) != 3 or None in shape or not isinstance(preprocessing, Preprocessing):
        own = "one of your own needs `input_shape = (c, h, w)` and `preprocessing = cr.models.Preprocessing(...)`"
        raise ValueError(f"model: expected a model of images, got {type(model).__name__}; {own}")
    from capsroute.inference.collect import evaluating

    device = preprocessing.white.device

    def scores(images: Tensor) -> Tensor:
        with evaluating(model):
            output = model(images.to(device, preprocessing.white.dtype))
            return output if isinstance(output, Tensor) else output.scores

    names = preprocessing.classes or tuple(map(str, range(getattr(model, "num_classes", 0))))
    if not names:
        raise ValueError(f"model: expected one that knows its classes, got {type(model).__name__} without num_classes")
    several = getattr(model, "default_loss", None) == "binary_cross_entropy"
    return Classifier(scores, shape, preprocessing, names, str(getattr(model, "score_kind", "logit")), several)


def _of_file(path: Path) -> Classifier:
    from capsroute.inference.exported_programs import run_exported

    run, about = run_exported(path)
    try:
        _, channels, height, width = about["input"]["shape"]
        record = about.get("preprocessing") or {}
        classifier = Classifier(
            lambda images: run(images)[0],
            (channels, height, width),
            Preprocessing(**record),
            tuple(about["classes"]),
            about["scores"],
            bool(about.get("several", False)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: expected what `capsroute export` says of a network, found other ({error})") from None
    if about["input"].get("normalise"):
        raise ValueError(f"{path}: expected a file that normalises by itself; export it again with this version")
    return classifier
