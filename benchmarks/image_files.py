"""How many images a second from JPEG files to batches of 224 x 224: decoded for every batch, or once onto disk, against
a DataLoader that decodes image by image.

    python benchmarks/image_files.py [--images 1000] [--side 500] [--workers 2] [--folder FOLDER]

The other loader does what torchvision's ImageFolder with Resize and CenterCrop does (torchvision itself is not asked
for): a Dataset opens a file with Pillow, converts it to RGB, resizes its shorter side, cuts out the middle and turns it
into floats; a DataLoader stacks them, with the same number of workers. With --workers 0 everything is one process, and
its processor's time is what counts: other work on the machine does not show. Without --folder, pictures are made:
smooth colours and some noise, about as many bytes a pixel as photographs have.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader, Dataset

import capsroute as cr
from capsroute.data.images.streamed import StreamedBatches

SIZE, BATCH = 224, 64


class ImageFolder(Dataset):
    """Files of class folders, decoded one at a time."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*/*.jpg"))
        names = sorted({file.parent.name for file in self.files})
        self.labels = [names.index(file.parent.name) for file in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index]) as picture:
            fitted = ImageOps.fit(picture.convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(fitted)).permute(2, 0, 1).float().div(255), self.labels[index]


def make_pictures(folder: Path, count: int, side: int) -> None:
    """JPEG files in two class folders, `side` pixels high and a third wider."""
    rng = np.random.default_rng(0)
    width = side * 4 // 3
    for number in range(count):
        coarse = Image.fromarray(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)).resize((width, side))
        noise = rng.integers(-20, 21, (side, width, 3))
        pixels = np.clip(np.asarray(coarse).astype(int) + noise, 0, 255).astype(np.uint8)
        file = folder / f"class {number % 2}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(file, quality=85)


def speed(batches: Iterable, clock: Callable[[], float]) -> float:
    """Images a second of one epoch."""
    begin, seen = clock(), 0
    for images, _ in batches:
        seen += len(images)
    return seen / (clock() - begin)


def decoding(files: list[Path], clock: Callable[[], float]) -> tuple[float, float]:
    """Images a second that Pillow (libjpeg-turbo) decodes and does nothing else with: whole, and as small as may be."""
    found = []
    for small in (False, True):
        begin = clock()
        for file in files:
            with Image.open(file) as picture:
                if small:
                    picture.draft(None, (SIZE, SIZE))
                picture.load()
        found.append(len(files) / (clock() - begin))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--side", type=int, default=500)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.folder or Path(scratch) / "pictures"
        if given.folder is None:
            make_pictures(folder, given.images, given.side)
        options = {"root": scratch, "workers": given.workers}
        shared = {"batch_size": BATCH, "num_workers": given.workers}
        clock = time.perf_counter if given.workers else time.process_time
        other = [speed(DataLoader(ImageFolder(folder), shuffle=True, **shared), clock) for _ in range(2)]
        streamed = cr.data.from_path(folder, (SIZE, SIZE), store="stream", **options)["train"]
        decoded = [speed(StreamedBatches(streamed, BATCH, seed=seed), clock) for seed in range(2)]
        begin = clock()
        kept = cr.data.from_path(folder, (SIZE, SIZE), store="disk", **options)
        first = sum(map(len, kept.values())) / (clock() - begin)
        mapped = [speed(cr.data.Batches(kept["train"], BATCH, seed=seed), clock) for seed in range(3)]
        whole, small = decoding(sorted(folder.glob("*/*.jpg")), clock)
        print(f"{sum(map(len, kept.values()))} JPEG files, {given.workers} workers, images a second (best of 2)")
        print(f"  DataLoader, image by image   {max(other):8.0f}")
        print(f"  streamed                     {max(decoded):8.0f}  {max(decoded) / max(other):.2f}x")
        print(f"  onto disk, the first time    {first:8.0f}  {first / max(other):.2f}x")
        print(f"  Pillow decodes alone, one process: whole {whole:.0f}, as small as is enough {small:.0f}")
        print(f"  from disk, ever after        {max(mapped):8.0f}  {max(mapped) / max(other):.2f}x")


if __name__ == "__main__":
    main()
