"""A path to a user's own images, whatever is there, as sets to train, validate and test on."""

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from capsroute.data.errors import DataError
from capsroute.data.images.arrays import list_arrays
from capsroute.data.images.listing import UNSAID, Listing, list_folder, list_table
from capsroute.data.images.shards import is_shards, list_shards
from capsroute.data.images.store import MEMORY_LIMIT, Storing, decode_rows, load_listing
from capsroute.data.images.streamed import StreamedSet
from capsroute.data.sets import ImageSet
from capsroute.extras import named_extra

FORMS = "a folder of class folders, a .csv of path,label, an .npz of images and labels, or shards-{0000..0099}.tar"


@named_extra
def list_images(path: str | os.PathLike[str]) -> Listing:
    """What a path holds, nothing decoded yet: class folders, a table of path,label, an .npz file, or shards."""
    given = Path(path).expanduser()
    if is_shards(path):
        found: Listing = list_shards(path)
    elif given.is_dir():
        found = list_folder(given)
    elif given.suffix.lower() == ".csv":
        found = list_table(given)
    elif given.suffix.lower() == ".npz":
        found = list_arrays(given)
    else:
        raise DataError(f"{path}: expected {FORMS}; found {'something else' if given.exists() else 'nothing there'}")
    if len(found.classes) < 2:
        raise DataError(f"{path}: expected at least two classes, found only {', '.join(found.classes)}")
    return found


def looks_like_path(text: str) -> bool:
    """Whether a word of a command line is the path of images rather than the name of a data set."""
    return os.sep in text or Path(text).exists() or Path(text).suffix.lower() in (".csv", ".npz", ".tar")


def name_of(path: str | os.PathLike[str]) -> str:
    """What a set of the images at `path` is called: its last part, without an ending and the numbers of shards."""
    return re.sub(r"[-_.]*(\{.*\}|[*?]+|\[.*\])", "", Path(path).stem) or "images"


@named_extra
def from_path(
    path: str | os.PathLike[str],
    size: tuple[int, int] | None = None,
    channels: int | None = None,
    *,
    seed: int = 0,
    validation: bool = True,
    strict: bool = False,
    store: str = "auto",
    memory_limit: int = MEMORY_LIMIT,
    workers: int | None = None,
    root: str | os.PathLike[str] | None = None,
) -> dict[str, ImageSet | StreamedSet]:
    """Your own images as sets by split: `train`, `validation` and `test`.

    Args:
        path: a folder of class folders, or of `train/`, `validation/` and `test/` with class folders; a .csv file of
            path,label or path,label,split; an .npz file of `images` and `labels`, or `train_images` and so on; shards
            that `capsroute data pack` or the WebDataset library wrote, as `shards-{0000..0099}.tar` or `shards-*.tar`.
        size: `(height, width)` that all are scaled to cover and cut to; None where they have one size already.
        channels: 1 or 3; None for 1 where all are grey, else 3.
        seed: splits that are not there are cut from `train` with it: a fifth for test, a tenth for validation.
        validation: False leaves all of `validation` in `train`.
        strict: raise at the first file that cannot be read, instead of leaving it out with a `DataWarning`.
        store: "memory"; "disk": resized once into a file that is then read from; "stream": decoded for each batch anew;
            "auto": memory where they fit into `memory_limit` bytes, else disk where that has room, else stream.
        workers: processes that decode a stream; None for one per core.
        root: the folder of data sets, in which that file is; None for the usual one.

    Example:
        >>> import tempfile, pathlib, capsroute as cr
        >>> from PIL import Image
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for number in range(20):
        ...     (folder / ("cat", "dog")[number % 2]).mkdir(exist_ok=True)
        ...     Image.new("RGB", (30 + number, 40)).save(folder / ("cat", "dog")[number % 2] / f"{number}.png")
        >>> pets = cr.data.from_path(folder, size=(32, 32))
        >>> {split: len(images) for split, images in pets.items()}, pets["train"].classes
        ({'train': 14, 'validation': 2, 'test': 4}, ('cat', 'dog'))
    """
    listing, _ = list_images(path).cut(seed, validation)
    return load_cut(listing, path, size, channels, Storing(store, memory_limit, workers, strict, root))


def load_cut(
    listing: Listing, path: str | os.PathLike[str], size: tuple[int, int] | None, channels: int | None, how: Storing
) -> dict[str, ImageSet | StreamedSet]:
    """What was listed at `path` and cut into splits, as sets; see `from_path`."""
    if size is None or channels is None:
        facts = listing.facts()
        if size is None and facts.mixed:
            raise DataError(f"{path}: expected images of one size, found several; give the size that all shall have")
        size, channels = size or (facts.height, facts.width), channels or facts.channels
    return load_listing(listing, name_of(path), size, channels, how)


@named_extra
def from_folder(
    path: str | os.PathLike[str],
    mode: str = "RGB",
    split: str = "train",
    *,
    size: tuple[int, int] | None = None,
) -> ImageSet:
    """Pictures in one folder per class, `path/cat/1.png`, `path/dog/2.png`, as one set; any bad file is an error.

    Args:
        path: the folder of class folders; their sorted names are the classes.
        mode: "RGB", or "L" for one grey channel.
        split: what to call it.
        size: `(height, width)` that all are scaled to cover and cut to; None where they have one size already.

    Example:
        >>> import tempfile, pathlib, capsroute as cr
        >>> from PIL import Image
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat", "dog"):
        ...     (folder / name).mkdir()
        ...     Image.new("RGB", (8, 6)).save(folder / name / "1.png")
        >>> pets = cr.data.from_folder(folder)
        >>> pets.images.shape, pets.classes
        (torch.Size([2, 3, 6, 8]), ('cat', 'dog'))
    """
    if mode not in ("RGB", "L"):
        raise ValueError(f"mode: expected 'RGB' or 'L', got {mode!r}")
    listing = list_folder(path)
    if (listing.parts != UNSAID).any():
        raise DataError(f"{path}: expected one folder per class, found train/ and others; `from_path` reads splits")
    images: list[Tensor] = []
    for row, picture in decode_rows(listing, range(len(listing)), size, 3 if mode == "RGB" else 1):
        if isinstance(picture, DataError):
            raise picture
        if images and picture.shape != images[0].shape:
            found, wanted = (f"{shape[2]}x{shape[1]} pixels" for shape in (picture.shape, images[0].shape))
            name = listing.name(row)
            raise DataError(f"{name}: expected {wanted} as the first picture, found {found}; give a size for all")
        images.append(torch.from_numpy(picture))
    return ImageSet(torch.stack(images), torch.from_numpy(listing.labels), listing.classes, Path(path).name, split)
