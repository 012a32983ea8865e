"""Folders of circles, squares and triangles in pictures of mixed sizes: data of one's own to try things on."""

import numpy as np
from PIL import Image, ImageDraw

CLASSES = ("großes Quadrat", "kreis", "triangle")


def draw(kind, rng):
    """A dark shape of a class on white, 20 to 40 pixels wide and high."""
    width, height = rng.integers(20, 41, 2)
    picture = Image.new("RGB", (int(width), int(height)), "white")
    pen, radius = ImageDraw.Draw(picture), 0.4 * min(width, height)
    x, y, ink = width / 2, height / 2, tuple(rng.integers(0, 120, 3).tolist())
    if kind == "kreis":
        pen.ellipse([x - radius, y - radius, x + radius, y + radius], fill=ink)
    elif kind == "triangle":
        pen.polygon([(x, y - radius), (x - radius, y + radius), (x + radius, y + radius)], fill=ink)
    else:
        pen.rectangle([x - radius, y - radius, x + radius, y + radius], fill=ink)
    return picture


def make_shapes(folder, count=30, seed=0):
    """`folder/CLASS/bild N.png`, half of them JPEG; names have spaces and umlauts."""
    rng = np.random.default_rng(seed)
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True)
        for number in range(count):
            draw(kind, rng).save(folder / kind / f"bild für {number}.{('png', 'jpg')[number % 2]}")
    return folder


def write(file, colour="white", size=(6, 4)):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(file)
