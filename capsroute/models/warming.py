"""Kernels of a model compiled ahead, so that its first step does not wait for them."""

from __future__ import annotations

import contextlib
import time
from typing import Any, NamedTuple

import torch

from capsroute.models.registry import create_model


class Warmed(NamedTuple):
    """How many kernels were compiled, in how many seconds, and how long the first step took after that."""

    kernels: int
    compiling: float
    first_step: float


def warm(name: str, batch: int = 128, half: bool = False, **overrides: Any) -> Warmed:
    """Compile what a training step of a model needs, many kernels at once; Triton keeps them on disk.

    Kernels depend on the batch size and on whether autocast to bfloat16 is on (`half`). Needs a CUDA device.
    """
    if not torch.cuda.is_available():
        raise ValueError("warm: kernels are compiled for the chip they run on, and there is no CUDA device")
    from capsroute.form.ahead import compile_together, dry

    model = create_model(name, **overrides).cuda().train()
    images = torch.rand(batch, *[side or 1 for side in model.input_shape], device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")

    def step() -> None:
        model.train()
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            output = model(images, labels)
        total = output.scores.float().sum()
        if output.reconstruction is not None:
            total = total + output.reconstruction.float().sum()
        total.backward()
        model.zero_grad(set_to_none=True)

    began = time.perf_counter()
    # What kernels did not fill may not pass the checks; what comes after that compiles as it runs.
    with dry() as missing, contextlib.suppress(ValueError):
        step()
    kernels = compile_together(missing)
    compiled = time.perf_counter()
    step()
    torch.cuda.synchronize()
    return Warmed(kernels, compiled - began, time.perf_counter() - compiled)
