"""Numbers on the device: which device, which precision, how many threads, and how a model lies there."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str) -> torch.device:
    """The device of a recipe; `auto` is the accelerator if there is one, else the CPU.

    >>> from capsroute.training.precision import choose_device
    >>> choose_device("cpu")
    device(type='cpu')
    """
    if name != "auto":
        try:
            device = torch.device(name)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"training.device: {name!r} cannot be used here ({reason})") from None
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


class Precision:
    """Autocast and loss scaling, as the recipe's `precision` asks for.

    >>> import torch
    >>> from capsroute.training.precision import Precision
    >>> with Precision("bf16", torch.device("cpu")).autocast():
    ...     print((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
    torch.bfloat16
    """

    def __init__(self, name: str, device: torch.device):
        if name in ("fp16", "tf32") and device.type != "cuda":
            raise ValueError(f"training.precision: {name!r} needs a CUDA device, this run is on {device}")
        self.name, self.device = name, device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager:
        dtype = AUTOCAST.get(self.name)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)


def sums_dtype(device: torch.device) -> torch.dtype:
    """What sums over many batches are kept in: float64, where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """So many threads on the CPU (None: as many as torch chose); as it was afterwards.

    Small networks are faster with one: threads that wait for each other cost more than they save, most of all on a
    machine that has other work to do.
    """
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Float32 products are exact under `fp32`, and may use TF32 otherwise; the settings are put back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "fp32"
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def channels_last(model: nn.Module) -> nn.Module:
    """The model, its convolutions laid out with channels last, as a GPU multiplies them: nothing is reordered then.

    `model.to(memory_format=torch.channels_last)` would lay out capsules' transforms so too, which have four axes like a
    convolution's weights; the kernels would copy them at every call.

    >>> import capsroute as cr
    >>> model = cr.training.channels_last(cr.create_model("capsnet_small"))
    """
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model
