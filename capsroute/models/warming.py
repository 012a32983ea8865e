"""Kernels of a model compiled ahead, all at once, so that its first step does not wait for one layer after another."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from capsroute.form.dispatch import reachable
from capsroute.models.registry import create_model

log = logging.getLogger(__name__)


def warm_up(
    model: nn.Module, loss: Callable[..., Tensor], example: Sequence[Any], *, autocast: torch.dtype | None = None
) -> int:
    """Compile what a training step on batches like `example` needs; how many kernels that was, 0 without a GPU.

    Kernels compile for the sizes they meet, and a first step would compile those of its first layer, run it, compile
    those of the next. Here the step is gone through once, kernels that are not compiled leave zeros, and then all are
    compiled at once. Weights, buffers, gradients and random numbers stay as they were.

    Args:
        model: what is trained, on its device.
        loss: `loss(model, *example)` -> a scalar.
        example: a batch as the loop will give it.
        autocast: compute in this dtype where it is safe, such as `torch.bfloat16`.

    Example:
        >>> import torch, capsroute as cr
        >>> model = cr.create_model("capsnet_small", image_size=8, decoder=None)
        >>> batch = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3])
        >>> def loss(model, images, labels):
        ...     return cr.losses.margin(model(images).scores, labels)
        >>> cr.models.warm_up(model, loss, batch)
        0
    """
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if not reachable(device):
        return 0
    from capsroute.form.ahead import compile_together, dry, start

    wanted = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # What Triton does once in a process is done while the first convolutions are.
    with ThreadPoolExecutor(1) as beside, dry() as missing, _unchanged(model, device):
        beside.submit(start, device)
        try:
            with torch.autocast(device.type, autocast, enabled=autocast is not None):
                value = loss(model, *example)
            torch.autograd.grad(value, wanted, allow_unused=True)
        except Exception as error:  # zeros may not pass a check; what comes after that compiles as it runs
            log.debug("the step was not gone through to its end: %s", error)
    return compile_together(missing)


@contextmanager
def _unchanged(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Buffers (averages of a batch norm) and random numbers are afterwards what they were."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    drawn, drawn_by_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(drawn_by_numpy)
        with torch.no_grad():
            for buffer, value in kept:
                buffer.copy_(value)


class Warmed(NamedTuple):
    """How many kernels were compiled, in how many seconds, and how long the first step took after that."""

    kernels: int
    compiling: float
    first_step: float


def warm(name: str, batch: int = 128, half: bool = False, **overrides: Any) -> Warmed:
    """Compile what a training step of a registered model needs; Triton keeps it on disk.

    Kernels depend on the batch size and on whether autocast to bfloat16 is on (`half`). Needs a CUDA device.
    """
    if not torch.cuda.is_available():
        raise ValueError("warm: kernels are compiled for the chip they run on, and there is no CUDA device")
    model = create_model(name, **overrides).cuda().train()
    images = torch.rand(batch, *[side or 1 for side in model.input_shape], device="cuda")
    labels = torch.zeros(batch, dtype=torch.long, device="cuda")

    def total(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        output = model(images, labels)
        parts = (output.scores, output.reconstruction)
        return torch.stack([part.float().sum() for part in parts if part is not None]).sum()

    began = time.perf_counter()
    kernels = warm_up(model, total, (images, labels), autocast=torch.bfloat16 if half else None)
    compiled = time.perf_counter()
    with torch.autocast("cuda", torch.bfloat16, enabled=half):
        value = total(model, images, labels)
    value.backward()
    torch.cuda.synchronize()
    return Warmed(kernels, compiled - began, time.perf_counter() - compiled)
