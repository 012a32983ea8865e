"""End to end: a training step and inference of whole models, eager, compiled, and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute import losses, models, training
from capsroute.bench.measure import NAN, capture, milliseconds, peak_mebibytes

Call = Callable[[], Tensor]
Calls = tuple[Call, Call]


class WholeModel(NamedTuple):
    """A model, the paper's batch size, a smaller one for CPU (0: not there), changed arguments, and how it is run."""

    model: str
    batch: int
    small_batch: int
    changed: tuple[tuple[str, Any], ...] = ()
    compiled: bool = True  # measured under torch.compile, too

    def batch_on(self, device: str) -> int:
        return self.small_batch if device == "cpu" else self.batch


END_TO_END = (
    WholeModel("capsnet", 128, 8),
    WholeModel("tsai_resnet_cifar10", 128, 4),
    WholeModel("heinsen_smallnorb", 20, 2),
    # A large photograph through convolutional capsules, which papers leave at 32 x 32.
    WholeModel("tsai_simple_cifar10", 32, 0, (("image_size", 224),), compiled=False),
)


@dataclass
class ModelRow:
    """One way to run one model: milliseconds of a training step and of inference, mebibytes of a training step."""

    model: str
    changed: str
    batch: int
    precision: str
    compiled: bool
    step_ms: float = NAN
    graph_step_ms: float = NAN
    inference_ms: float = NAN
    graph_inference_ms: float = NAN
    peak_mib: float = NAN
    note: str = ""


def ways(device: str, compiled: bool) -> Iterator[tuple[WholeModel, bool, bool]]:
    """Every model, in float32 and, on CUDA, under bfloat16 autocast (True), as it is and compiled (True)."""
    for whole in END_TO_END:
        if device == "cuda" or whole.small_batch:
            for half in (False, True) if device == "cuda" else (False,):
                for optimised in (False, True) if compiled and whole.compiled else (False,):
                    yield whole, half, optimised


def measure_model(whole: WholeModel, half: bool, compiled: bool, device: str, calls: Calls | None = None) -> ModelRow:
    """One row; a model that fails says so in its note. `calls` are those of `training_step`, if they were made."""
    changed = " ".join(f"{key}={value}" for key, value in whole.changed)
    row = ModelRow(whole.model, changed, whole.batch_on(device), "bfloat16" if half else "float32", compiled)
    try:
        _measure(row, device, *(calls or training_step(whole, device, half, compiled)))
    except Exception as error:
        row.note = f"{type(error).__name__}: {error}".splitlines()[0]
    return row


def _measure(row: ModelRow, device: str, step: Call, infer: Call) -> None:
    row.step_ms, row.inference_ms = milliseconds(step, device), milliseconds(infer, device)
    if device == "cuda":
        row.peak_mib = peak_mebibytes(step)
        row.graph_step_ms = milliseconds(capture(step), device)
        row.graph_inference_ms = milliseconds(capture(infer), device)


def training_step(whole: WholeModel, device: str, half: bool, compiled: bool) -> Calls:
    """A training step (forward, loss, backward, Adam) and inference of a model on random images.

    Compiled, cuDNN too may try what is fastest.
    """
    torch.manual_seed(0)
    batch = whole.batch_on(device)
    model = models.create_model(whole.model, **dict(whole.changed)).to(device)
    model = training.channels_last(model)
    shape = [side or 1 for side in model.input_shape]
    images = torch.rand(batch, *shape, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(model.num_classes, (batch,), device=device)
    on_cuda = device == "cuda"
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=on_cuda, capturable=on_cuda)
    run = torch.compile(model) if compiled else model
    autocast = torch.autocast(device, torch.bfloat16, enabled=half)

    def step() -> Tensor:
        torch.backends.cudnn.benchmark = compiled
        model.train()
        with autocast:
            output = run(images, labels)
        loss = _loss(model, output, images, labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss.detach()

    def infer() -> Tensor:
        torch.backends.cudnn.benchmark = compiled
        model.eval()
        with torch.no_grad(), autocast:
            return run(images).scores

    return step, infer


def _loss(model: models.CapsuleModel, output: models.ModelOutput, images: Tensor, labels: Tensor) -> Tensor:
    scores = output.scores.float()
    loss = losses.margin(scores, labels) if model.default_loss == "margin" else F.cross_entropy(scores, labels)
    if output.reconstruction is None:
        return loss
    return loss + losses.reconstruction(output.reconstruction.float(), images, weight=0.0005)


@dataclass
class ModelTask:
    """A training step and inference of a model."""

    whole: WholeModel
    half: bool
    compiled: bool
    device: str
    calls: tuple[Callable[[], Tensor], Callable[[], Tensor]] | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        precision = "bfloat16" if self.half else "float32"
        return f"{self.whole.model}, {precision}{', compiled' if self.compiled else ''}"

    @property
    def cost(self) -> int:
        return 3 if self.compiled else 1

    def prepare(self) -> None:
        self.calls = training_step(self.whole, self.device, self.half, self.compiled)
        for call in self.calls:
            call()

    def measure(self) -> Iterator[ModelRow]:
        yield measure_model(self.whole, self.half, self.compiled, self.device, self.calls)
