"""Making inference fast, and exporting.

Coefficients averaged over the training set replace the loop; folded into the transforms, a capsule layer is a linear layer.
"""

# %%
import tempfile
from pathlib import Path

import torch

import capsroute as cr

folder = Path(tempfile.mkdtemp())
recipe = cr.training.load_recipe("quickstart", ["training.epochs=3", "evaluation.pictures=false"])
run = cr.training.fit(None, None, recipe, folder / "run", reporter=cr.training.SilentReporter())
model = run.model.eval()

# %%
# Accumulate, then fold. `fold` gives a network of plain layers, with the same answers as the one with given coefficients.
digits = cr.data.load("digits", "train")
batches = [(digits.images[at : at + 100].float() / 255, digits.labels[at : at + 100]) for at in range(0, 1200, 100)]
master = cr.inference.accumulate(model, batches)
fast = cr.inference.with_coefficients(model, master)
folded = cr.inference.fold(fast)
images = cr.data.load("digits", "test").images.float() / 255
with torch.no_grad():
    print("largest difference:", (fast(images).scores - folded(images).scores).abs().max().item())

# %%
# From a run folder the same is `capsroute accumulate RUN` and `capsroute export RUN`: ONNX, `.pt2` and safetensors, each checked against the network it came from. An ONNX file runs in C++ and in the browser with onnxruntime.
