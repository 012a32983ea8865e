"""End to end: a training step and inference of whole models, eager, compiled, and as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute import losses, models
from capsroute.bench.measure import capture, milliseconds, peak_mebibytes
from capsroute.bench.run import NAN

__all__ = ["END_TO_END", "ModelRow", "run_models", "training_step"]

# Model, the paper's batch size, a smaller one for CPU.
END_TO_END = {"capsnet": (128, 8), "tsai_resnet_cifar10": (128, 4), "heinsen_smallnorb": (20, 2)}


@dataclass
class ModelRow:
    """One way to run one model: milliseconds of a training step and of inference, mebibytes of a training step."""

    model: str
    batch: int
    precision: str
    compiled: bool
    step_ms: float = NAN
    graph_step_ms: float = NAN
    inference_ms: float = NAN
    graph_inference_ms: float = NAN
    peak_mib: float = NAN
    note: str = ""


def run_models(device: str, compiled: bool, names: tuple[str, ...] = tuple(END_TO_END)) -> Iterator[ModelRow]:
    """Every model in float32 and, on CUDA, under bfloat16 autocast."""
    for name in names:
        batch = END_TO_END[name][device == "cpu"]
        for half in (False, True) if device == "cuda" else (False,):
            for optimised in (False, True) if compiled else (False,):
                yield _measure(ModelRow(name, batch, "bfloat16" if half else "float32", optimised), device)


def _measure(row: ModelRow, device: str) -> ModelRow:
    step, infer = training_step(row.model, row.batch, device, row.precision == "bfloat16", row.compiled)
    row.step_ms, row.inference_ms = milliseconds(step, device), milliseconds(infer, device)
    if device == "cuda":
        row.peak_mib = peak_mebibytes(step)
        row.graph_step_ms, row.graph_inference_ms = (milliseconds(capture(call), device) for call in (step, infer))
        torch.cuda.empty_cache()
    torch._dynamo.reset()
    return row


def training_step(
    name: str, batch: int, device: str, half: bool, compiled: bool
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """A training step (forward, loss, backward, Adam) and inference of a model on random images."""
    torch.manual_seed(0)
    model = models.create_model(name).to(device)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shape = [side or 1 for side in model.input_shape]
    images = torch.rand(batch, *shape, device=device).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(model.num_classes, (batch,), device=device)
    on_cuda = device == "cuda"
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=on_cuda, capturable=on_cuda)
    run = torch.compile(model) if compiled else model
    autocast = torch.autocast(device, torch.bfloat16, enabled=half)

    def step() -> Tensor:
        model.train()
        with autocast:
            output = run(images, labels)
        loss = _loss(model, output, images, labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        return loss

    def infer() -> Tensor:
        model.eval()
        with torch.no_grad(), autocast:
            return run(images).scores

    return step, infer


def _loss(model: models.CapsuleModel, output: models.ModelOutput, images: Tensor, labels: Tensor) -> Tensor:
    scores = output.scores.float()
    loss = losses.margin(scores, labels) if model.default_loss == "margin" else F.cross_entropy(scores, labels)
    if output.reconstruction is None:
        return loss
    return loss + losses.reconstruction(output.reconstruction.float(), images)
