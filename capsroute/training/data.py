"""From a recipe's `[data]` to batches in [0, 1]: splits, augmentation by name, crops, freshly drawn pictures; and
batches made ahead of time, by a thread with a stream of its own, while a GPU trains. Mean and deviation are the model's
own business: `image_statistics.py` writes them into it."""

import inspect
import queue
import threading
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from capsroute.data import Batches, GeneratedBatches, ImageSet, dataset_info, from_arrays, load
from capsroute.data.batches import Epochs
from capsroute.data.images.streamed import StreamedBatches, StreamedSet
from capsroute.training.loaders import Loaded, LoadedBatches
from capsroute.training.own_images import load_own_images
from capsroute.training.recipe import Recipe
from capsroute.training.sections import make_augmentation
from capsroute.training.text import Encoder, TextBatches, encode_texts

AHEAD = 3  # batches that wait at most
COUNTED = 4096  # images whose pixels are counted at once


@dataclass(frozen=True)
class Splits:
    """The images of a run: to train on, to choose the best weights by, and to test on once.

    Each part is an image set of `cr.data`, or a Dataset or DataLoader of torch that gives `(inputs, labels)`.

    >>> import capsroute as cr
    >>> splits = cr.training.Splits(cr.data.load("digits"), test={"digits": cr.data.load("digits", "test")})
    >>> len(splits.train), len(splits.test["digits"])
    (1295, 359)
    """

    train: Any
    validation: Any | None = None
    test: Mapping[str, Any] = field(default_factory=dict)
    cut: str | None = None  # images of one's own: a checksum of the names of those in `train`

    @cached_property
    def channels(self) -> tuple[list[float], list[float]]:
        """Mean and standard deviation of each channel of the training images, in [0, 1]."""
        # Counting grey levels is exact, and needs no float copy of the set; nor of more than some of it at once.
        counts = torch.zeros(self.train.shape[0], 256, dtype=torch.float64)
        for rows in torch.arange(len(self.train)).split(COUNTED):
            pixels = self.train.subset(rows).images.transpose(0, 1).flatten(1)  # [c, pixels]
            counts += torch.stack([torch.bincount(channel, minlength=256) for channel in pixels]).double().cpu()
        shares, levels = counts / counts.sum(1, keepdim=True), torch.arange(256, device=counts.device) / 255
        mean = (shares * levels).sum(1)
        std = (shares * (levels - mean[:, None]).square()).sum(1).sqrt()
        return mean.tolist(), std.clamp_min(1 / 255).tolist()


def as_splits(data: Any) -> Splits:
    """What `fit` is given, as `Splits`: they themselves, or training data alone."""
    splits = data if isinstance(data, Splits) else Splits(data)
    test = {name: _part(part) for name, part in splits.test.items()}
    validation = None if splits.validation is None else _part(splits.validation)
    return replace(splits, train=_part(splits.train), validation=validation, test=test)


def _part(part: Any) -> Any:
    if isinstance(part, (tuple, list)) and len(part) == 2:
        return from_arrays(*part)
    if isinstance(part, (Dataset, DataLoader)):
        return Loaded(part)
    if not hasattr(part, "classes"):
        wanted = "an image set, (images, labels), a Dataset or a DataLoader"
        raise TypeError(f"data: expected Splits of, or for training alone, {wanted}; got {type(part).__name__}")
    return part


def load_splits(recipe: Recipe, device: torch.device | str = "cpu") -> Splits:
    """The data set that a recipe names, fetched if need be; sentences are encoded and toys rendered on `device`.

    >>> import capsroute as cr
    >>> len(cr.training.load_splits(cr.training.load_recipe("quickstart")).validation)
    143
    """
    data = recipe.data
    if data.path is not None:
        return load_own_images(recipe)
    if data.name is None:
        raise ValueError("data: the recipe names no data set, as images were given in Python; --data PATH names them")
    info = dataset_info(data.name)
    drawn_from = info.needs if data.fresh else data.name
    assert drawn_from is not None
    # Fresh pictures are drawn from the digits themselves; the options are those of the generated set.
    options = {} if data.fresh else data.options
    get = partial(_load, torch.device(device))
    train = get(drawn_from, "train" if data.validation else "train+validation", options)
    validation = get(data.name, "validation", _root_options(recipe)) if data.validation else None
    test = {f"{data.name} validation": validation}
    if recipe.evaluation.on == "test":
        names = data.test or [data.name]
        test = {name: get(name, "test", _root_options(recipe) if name == data.name else {}) for name in names}
    elif validation is None:
        raise ValueError(
            "evaluation.on: 'validation' needs data.validation = true, for there is nothing else to look at"
        )
    if recipe.text is None:
        return Splits(train, validation, test)
    encode = partial(encode_texts, settings=recipe.text, encoder=Encoder(recipe.text, torch.device(device)))
    encoded: dict[str, Any] = {name: encode(texts) for name, texts in test.items() if texts is not None}
    held_out = None if validation is None else encode(validation)
    return Splits(encode(train), held_out, encoded)


def _load(device: torch.device, name: str, split: str, options: dict[str, Any]) -> Any:
    """A split in the host's memory; toys are rendered on the GPU where there is one, many times faster."""
    info = dataset_info(name)
    rendered = info.needs is None and "device" in inspect.signature(info.read).parameters
    if rendered and device.type == "cuda":
        return load(name, split, **{"device": device, **options}).to("cpu")
    return load(name, split, **options)


def _root_options(recipe: Recipe) -> dict[str, Any]:
    """Options for held-out data: sentences are judged whole, whatever was trained on (Heinsen 2019, section 4.2)."""
    return {key: value for key, value in recipe.data.options.items() if key != "phrases"}


def training_batches(
    splits: Splits, recipe: Recipe, device: torch.device, rank: int = 0, world_size: int = 1
) -> Epochs:
    """Shuffled, augmented batches; process `rank` gets its share of each."""
    size = min(recipe.training.batch_size, len(splits.train))
    if size % world_size:
        raise ValueError(f"training.batch_size: {world_size} processes cannot share batches of {size} evenly")
    options: dict[str, Any] = {
        "seed": recipe.training.seed,
        "device": device,
        "rank": rank,
        "world_size": world_size,
        "drop_last": True,
    }
    if isinstance(splits.train, Loaded):
        if recipe.data.augment or recipe.data.normalise != "none":
            raise ValueError("data: a Dataset or DataLoader augments and normalises by itself; expected no setting")
        return LoadedBatches(splits.train, size, **options)
    if recipe.text is not None:
        return TextBatches(splits.train, size, mixup=recipe.text.mixup, by_length=recipe.text.by_length, **options)
    options |= {"augment": make_augmentation(recipe.data.augment), "extras": ("parts",) if recipe.data.parts else ()}
    if recipe.data.fresh:
        assert recipe.data.name is not None
        return GeneratedBatches(recipe.data.name, splits.train, size, **options)
    return _batches(splits.train, size, **options)


def plain_batches(images: Any, recipe: Recipe, device: torch.device, **share: Any) -> Epochs:
    """Batches to evaluate on: in order, cropped at the centre, never augmented."""
    size = min(recipe.evaluation.batch_size, len(images))
    if isinstance(images, Loaded):
        return LoadedBatches(images, size, shuffle=False, device=device, **share)
    if recipe.text is not None:
        return TextBatches(images, size, shuffle=False, device=device, **share)
    if recipe.data.test_crop:
        images = centre_crop(images, recipe.data.test_crop)
    return _batches(images, size, shuffle=False, device=device, **share)


def _batches(images: ImageSet | StreamedSet, size: int, **options: Any) -> Batches:
    if isinstance(images, StreamedSet):
        return StreamedBatches(images, size, **options)
    return Batches(images, size, **options)


def model_arguments(splits: Splits, recipe: Recipe) -> dict[str, Any]:
    """What `create_model` is given: sizes that follow from the data, unless the recipe says otherwise."""
    if recipe.text is not None:
        depth, width = splits.train.shape
        sizes = {"depth": depth, "width": width, "num_classes": len(splits.train.classes)}
        return {**sizes, **recipe.model.arguments}
    # Pictures that are drawn anew while training have other sizes than the digits they are drawn from.
    images = next((held_out for held_out in (splits.validation, *splits.test.values()) if held_out is not None), None)
    channels, height, width = (splits.train if images is None else images).shape
    if recipe.data.test_crop:
        height = width = recipe.data.test_crop
    sizes = {
        "in_channels": channels,
        "image_size": height if height == width else [height, width],
        "num_classes": len(splits.train.classes),
    }
    return {**sizes, **recipe.model.arguments}


def centre_crop(images: ImageSet, size: int) -> ImageSet:
    """The middle `size` x `size` pixels of every image.

    >>> import capsroute as cr
    >>> from capsroute.training.data import centre_crop
    >>> centre_crop(cr.data.load("digits"), 6).shape
    (1, 6, 6)
    """
    if not isinstance(images, ImageSet):
        raise ValueError("test_crop: images that are streamed are cut when they are decoded; set data.image_size")
    _, height, width = images.shape
    if size > min(height, width):
        raise ValueError(f"test_crop: expected at most {min(height, width)}, got {size}")
    top, left = (height - size) // 2, (width - size) // 2
    return replace(images, images=images.images[:, :, top : top + size, left : left + size].contiguous())


def made_ahead(source: Epochs, device: torch.device) -> Epochs:
    """`source`, its batches made ahead of the loop where that is a gain, on a GPU, and where a thread may make them.

    Those of a Dataset or DataLoader are drawn from the generators of the whole process. In a thread they would mix with
    what the model or a callback draws, and be found half-way in a checkpoint; no lock can keep a model from drawing.
    """
    # Nor those of texts: `Prefetched` hands tensors from stream to stream, and a padded text is a pair of them.
    here = device.type != "cuda" or isinstance(source, (LoadedBatches, TextBatches))
    return source if here else Prefetched(source, device)


class Prefetched(Epochs):
    """A source whose batches are made on the GPU ahead of the loop that takes them; order and values are the same.

    Its batches must be drawn from generators of its own (`made_ahead`).

    Drawing random numbers on the CPU and copying them makes whoever does it wait for the stream it copies on. Here
    that is a thread with a stream of its own, not the loop. `state_dict` speaks of what was taken, not of what was
    made. On other devices it is a thread like any other.

    >>> import torch, capsroute as cr
    >>> from capsroute.training.data import Prefetched
    >>> digits = cr.data.load("digits")
    >>> ahead = Prefetched(cr.data.Batches(digits, 100, seed=1), torch.device("cpu"))
    >>> plain = cr.data.Batches(digits, 100, seed=1)
    >>> all(torch.equal(one[0], other[0]) for one, other in zip(ahead, plain))
    True
    """

    def __init__(self, source: Epochs, device: torch.device):
        self.source, self.device = source, device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.state = source.state_dict()

    def __len__(self) -> int:
        return len(self.source)

    def set_epoch(self, epoch: int) -> None:
        self.source.set_epoch(epoch)
        self.state = self.source.state_dict()

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.source.load_state_dict(state)
        self.state = self.source.state_dict()

    def __iter__(self) -> Iterator[Any]:
        made: queue.Queue = queue.Queue(AHEAD)
        left = threading.Event()
        thread = threading.Thread(target=self._make, args=(made, left), daemon=True)
        thread.start()
        try:
            while True:
                item = made.get()
                if isinstance(item, BaseException):
                    raise item
                batch, self.state, ready = item
                if batch is None:
                    return
                if ready is not None:
                    ours = torch.cuda.current_stream(self.device)
                    ours.wait_event(ready)
                    for values in batch:
                        values.record_stream(ours)  # its memory is not given to the next batch before we are done
                yield batch
        finally:
            left.set()
            while thread.is_alive():  # it may be waiting for room
                with suppress(queue.Empty):
                    made.get_nowait()
                thread.join(0.01)

    def _make(self, made: queue.Queue, left: threading.Event) -> None:
        """What the thread does: (batch, the source's state after it, when the GPU has it), then (None, state, None)."""
        try:
            with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
                for batch in self.source:
                    ready = None if self.stream is None else self.stream.record_event()
                    made.put((batch, self.source.state_dict(), ready))
                    if left.is_set():
                        return
            made.put((None, self.source.state_dict(), None))
        except BaseException as error:  # for the loop to raise
            made.put(error)
