"""Your own images.

A folder with one sub-folder per class, any mixture of sizes: train, look, predict. Here the images are made first.
"""

# %%
# Three kinds of shape, in pictures of different sizes.
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

folder = Path(tempfile.mkdtemp())
random = np.random.default_rng(0)
for kind in ("circle", "square", "triangle"):
    (folder / "shapes" / kind).mkdir(parents=True)
    for number in range(40):
        side = int(random.integers(24, 48))
        image = Image.new("L", (side, side))
        x, y, r = (*random.integers(side // 3, side - side // 3, 2), side // 4)
        draw = ImageDraw.Draw(image)
        corners = {"square": [(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)]}
        corners["triangle"] = [(x - r, y + r), (x + r, y + r), (x, y - r)]
        draw.ellipse([x - r, y - r, x + r, y + r], 255) if kind == "circle" else draw.polygon(corners[kind], 255)
        image.save(folder / "shapes" / kind / f"{number}.png")

# %%
# From the command line. Classes, size, mean and deviation go into the model; the pictures are cut into training, validation and test with a fixed seed.


def capsroute(*words):
    subprocess.run([sys.executable, "-m", "capsroute", *map(str, words)], check=True)


short = ["--set", "training.epochs=2", "--set", "evaluation.pictures=false"]
capsroute("train", "--data", folder / "shapes", "--out", folder / "run", *short)

# %%
# The run can be evaluated, drawn, exported, resumed and explored without another word, since it knows its data.
capsroute("evaluate", folder / "run")
