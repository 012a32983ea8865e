"""Images of the user's own in a recipe: `--data PATH` in place of a named set, and what a run writes down of them."""

from __future__ import annotations

import hashlib
import math
import os
import re
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from capsroute.data import DataError, ImageSet, dataset_info
from capsroute.data.images.listing import PARTS, UNSAID, Facts, Listing
from capsroute.data.images.path import MEMORY_LIMIT, Storing, list_images, load_cut, name_of
from capsroute.data.images.shards import is_shards
from capsroute.data.images.streamed import StreamedSet
from capsroute.training.recipe import Recipe

if TYPE_CHECKING:
    from capsroute.training.data import Splits

CUT_ANEW = (
    "images were added or taken away since the run began, and cut into splits anew, so that some it was trained on may "
    "be among its test images now"
)
LARGEST_SIDE = 64  # pixels, where nobody asked for more: a capsule network's cost grows with its positions


def train_on(recipe: Recipe, path: str | os.PathLike[str], strict: bool = False) -> tuple[Recipe, str]:
    """The recipe with the images at `path` in place of its own data set, and what was decided, in words.

    Classes, channels and size come from the images, unless the recipe says otherwise.
    """
    if recipe.text is not None or recipe.data.fresh or recipe.data.parts:
        kind = "is about sentences" if recipe.text is not None else "draws its own pictures"
        raise ValueError(f"--data: the recipe {recipe.name!r} {kind}; expected one that trains on images of a data set")
    listing = list_images(path)
    facts, arguments = listing.facts(), recipe.model.arguments
    height, width = _image_size(recipe, facts)
    channels = arguments.get("in_channels", recipe.data.channels or facts.channels)
    cut, said = listing.cut(recipe.data.split_seed or 0, recipe.data.validation)
    data = {
        "path": str(Path(path).expanduser().absolute()),
        "image_size": [height, width],
        "channels": channels,
        "classes": list(listing.classes),
        **({"strict": True} if strict else {}),
    }
    kept = {
        key: value
        for key, value in recipe.data.model_dump(exclude_unset=True).items()
        if key not in ("name", "options", "test", "path")
    }
    slug = re.sub(r"[^\w-]+", "-", name_of(path)).strip("-").lower() or "images"
    changed = recipe.replace(name=f"{recipe.name}-{slug}", data={**kept, **data}, paper=None)
    sizes = "pictures of several sizes, scaled and cut" if facts.mixed else f"{facts.width} x {facts.height} pixels"
    counts = ", ".join(f"{len(cut.rows(part)):,} {part}" for part in ("train", "validation", "test"))
    return changed, "\n".join(
        [
            f"{path}: {len(listing):,} images of {len(listing.classes)} classes ({_shortened(listing.classes)})",
            f"{counts}{'; ' + said if said else ''}",
            f"{sizes} to {width} x {height}, {'grey' if channels == 1 else 'colour'}",
        ]
    )


def moved(recipe: Recipe, path: str | os.PathLike[str]) -> Recipe:
    """The recipe of a run on a user's own images, with these at `path` now."""
    if recipe.data.name is not None:
        raise ValueError(f"--data: the run was trained on {recipe.data.name!r}, which capsroute knows by name")
    changes: dict[str, Any] = {"data.path": str(Path(path).expanduser().absolute())}
    if not Path(path).expanduser().is_dir():  # names in tables, arrays and shards are others than in folders
        changes["data.cut"] = None
    return recipe.replace(**changes)


def has_data(recipe: Recipe) -> bool:
    """Whether the data that a run was trained on can be found again."""
    path = recipe.data.path
    return recipe.data.name is not None or (path is not None and (Path(path).exists() or is_shards(path)))


def load_others(
    path: str | os.PathLike[str], split: str, shape: tuple[int, int, int], classes: Sequence[str]
) -> ImageSet | StreamedSet:
    """Other images to measure a network on, brought to its `shape`: a split where `path` has splits, else all of them.

    Their classes are found by name among those of the network; one that it does not know is an error.
    """
    listing = list_images(path)
    unknown = sorted(set(listing.classes) - set(classes))
    if unknown:
        raise DataError(f"{path}: expected classes of {', '.join(classes)}, found {', '.join(unknown)}")
    places = np.array([list(classes).index(name) for name in listing.classes])
    parts = np.where(listing.parts == UNSAID, PARTS.index(split), listing.parts).astype(np.int8)
    chosen = replace(listing, labels=places[listing.labels], classes=tuple(classes), parts=parts)
    rows = chosen.rows(split)
    if len(rows) == 0:
        raise DataError(f"{path}: expected images to {split} on, found none")
    images = StreamedSet(chosen, rows, shape, name_of(path), split)
    return images if len(rows) * math.prod(shape) > MEMORY_LIMIT else images.in_memory()


def load_own_images(recipe: Recipe) -> Splits:
    """The splits of the images that `data.path` names."""
    from capsroute.training.data import Splits

    data = recipe.data
    assert data.path is not None
    path = Path(data.path).expanduser()
    if not (path.exists() or is_shards(path)):
        raise DataError(f"data.path: '{path}' is not there any more; --data PATH says where the images are now")
    size = data.image_size
    listing = _listed(recipe)
    how = Storing(data.store or "auto", data.memory_limit or MEMORY_LIMIT, data.workers, bool(data.strict))
    sets = load_cut(listing, path, (size[0], size[1]) if size else None, data.channels, how)
    _check_classes(sets["train"], data.classes, path)
    cut = _checksum(listing)
    if data.cut not in (None, cut):
        warnings.warn(f"{path}: {CUT_ANEW}", stacklevel=2)
    return Splits(sets["train"], sets.get("validation"), {name_of(path): sets["test"]} if "test" in sets else {}, cut)


def recorded(recipe: Recipe, splits: Splits) -> Recipe:
    """The recipe with what follows from a user's own images written down; the model keeps mean and deviation."""
    train = splits.train
    if recipe.text is not None or not isinstance(train, ImageSet | StreamedSet) or recipe.data.name is not None:
        return recipe
    changes: dict[str, Any] = {"data.classes": list(train.classes)}
    channels, height, width = train.shape
    if channels in (1, 3):
        changes |= {"data.image_size": [height, width], "data.channels": channels}
    if recipe.data.path is not None:
        changes["data.path"] = str(Path(recipe.data.path).expanduser().absolute())
        changes["data.cut"] = splits.cut or _checksum(_listed(recipe))
        if recipe.data.cut not in (None, changes["data.cut"]):
            raise DataError(f"{recipe.data.path}: {CUT_ANEW}: a run cannot be gone on with on other images")
    return recipe.replace(**changes)


def _listed(recipe: Recipe) -> Listing:
    """The images at `data.path`, cut into splits."""
    assert recipe.data.path is not None
    listing = list_images(Path(recipe.data.path).expanduser())
    return listing.cut(recipe.data.split_seed or 0, recipe.data.validation)[0]


def _checksum(listing: Listing) -> str:
    """Of the names of the images that are trained on."""
    names = "\n".join(sorted(str(listing.files[row]) for row in listing.rows("train")))
    return hashlib.blake2b(names.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _image_size(recipe: Recipe, facts: Facts) -> tuple[int, int]:
    asked = recipe.data.image_size or recipe.model.arguments.get("image_size")
    if asked is not None:
        return (asked, asked) if isinstance(asked, int) else (asked[0], asked[1])
    if not facts.mixed and max(facts.height, facts.width) <= LARGEST_SIDE:
        return facts.height, facts.width
    if recipe.data.name is not None:
        # What the recipe's network was made for.
        _, height, width = dataset_info(recipe.data.name).shape
        return height, width
    side = min(facts.height, facts.width, LARGEST_SIDE)
    return side, side


def _check_classes(train: ImageSet | StreamedSet, classes: list[str] | None, path: Path) -> None:
    if classes and list(train.classes) != classes:
        now = ", ".join(train.classes)
        raise DataError(f"{path}: expected the classes {', '.join(classes)} that the run was begun with, found {now}")


def _shortened(classes: tuple[str, ...]) -> str:
    return ", ".join(classes) if len(classes) <= 6 else ", ".join([*classes[:5], "..."])
