"""How many augmented images a second: batches from a resident set, against a loader that works image by image.

    CAPSROUTE_DATA=... python benchmarks/data_throughput.py [--device cuda] [--random]

`--random` takes random pixels of the same number and shape, for a machine that has not the data sets; neither loader's
speed depends on what the pictures show.

The other loader does what torchvision's data sets and transforms do: a Dataset makes a PIL picture of one image, pads,
crops and flips it with numbers from torch's generator and turns it into a tensor; a DataLoader stacks them, here in the
process itself (its default) and with one and two worker processes. Both shift MNIST by up to 2 pixels, and pad CIFAR-10
by 4, crop and flip it. The median of several epochs is reported.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Iterable

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

import capsroute as cr

BATCH = 128
SETTINGS = {
    "mnist": (cr.data.augment.Shift(2), 2, False),
    "cifar10": (cr.data.augment.Compose([cr.data.augment.PadCrop(4), cr.data.augment.Flip(0.5)]), 4, True),
}


class OneByOne(Dataset):
    """Images as PIL pictures, padded, cropped and flipped one at a time."""

    def __init__(self, images: cr.data.ImageSet, pad: int, flip: bool) -> None:
        self.arrays = images.images.permute(0, 2, 3, 1).squeeze(3).contiguous().numpy()
        self.labels = images.labels.tolist()
        self.pad, self.flip = pad, flip

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = Image.fromarray(self.arrays[index])
        width, height = picture.size
        picture = ImageOps.expand(picture, border=self.pad, fill=0)
        top = int(torch.randint(2 * self.pad + 1, (1,)))
        left = int(torch.randint(2 * self.pad + 1, (1,)))
        picture = picture.crop((left, top, left + width, top + height))
        if self.flip and torch.rand(1) < 0.5:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = np.array(picture)
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        return torch.from_numpy(pixels).permute(2, 0, 1).contiguous().float().div(255), self.labels[index]


def images_per_second(batches: Iterable, device: torch.device, epochs: int) -> float:
    """The median over `epochs` of images a second, after one epoch to warm up."""
    rates = []
    for _ in range(epochs + 1):
        start, count = time.perf_counter(), 0
        for images, labels in batches:
            count += len(images.to(device)) + 0 * len(labels.to(device))
        if device.type == "cuda":
            torch.cuda.synchronize()
        rates.append(count / (time.perf_counter() - start))
    return statistics.median(rates[1:])


def random_images(name: str) -> cr.data.ImageSet:
    """As many images of the same shape as the data set's training split has."""
    info = cr.data.dataset_info(name)
    count = info.sizes["train"]
    pixels = torch.randint(256, (count, *info.shape), dtype=torch.uint8)
    return cr.data.ImageSet(pixels, torch.arange(count) % len(info.classes), info.classes, name)


def measure(
    name: str, device: torch.device, epochs: int, random_pixels: bool
) -> tuple[float, dict[int, float], float | None]:
    """Images a second of ours (resident), of the other loader by number of workers, and of ours streamed (GPU only)."""
    augment, pad, flip = SETTINGS[name]
    images = random_images(name) if random_pixels else cr.data.load(name)
    ours = images_per_second(cr.data.Batches(images, BATCH, augment=augment, device=device), device, epochs)
    streamed = None
    if device.type == "cuda":
        batches = cr.data.Batches(images, BATCH, augment=augment, device=device, resident=False)
        streamed = images_per_second(batches, device, epochs)
    others = {}
    for workers in (0, 1, 2):
        loader = DataLoader(OneByOne(images, pad, flip), BATCH, shuffle=True, num_workers=workers)
        others[workers] = images_per_second(loader, device, max(1, epochs // 3))
    return ours, others, streamed


def hardware(device: torch.device) -> str:
    """What this was measured on."""
    processor = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as lines:
            processor = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), processor)
    chip = f", {torch.cuda.get_device_name(device)}" if device.type == "cuda" else ""
    threads = f"{torch.get_num_threads()} threads"
    return f"{processor}, {os.cpu_count()} cores, {threads}{chip}; torch {torch.__version__}, batch {BATCH}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--random", action="store_true")
    parser.add_argument("--epochs", type=int, default=9)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(hardware(device))
    print(
        "| data set | capsroute, images/s | streamed | one by one: 0, 1, 2 workers | times faster: than 0, than best |"
    )
    print("|---|---|---|---|---|")
    for name in SETTINGS:
        ours, others, streamed = measure(name, device, arguments.epochs, arguments.random)
        slow = ", ".join(f"{rate:,.0f}" for rate in others.values())
        middle = f"{streamed:,.0f}" if streamed else "-"
        times = f"{ours / others[0]:.1f}, {ours / max(others.values()):.1f}"
        print(f"| {name} | {ours:,.0f} | {middle} | {slow} | {times} |", flush=True)


if __name__ == "__main__":
    main()
