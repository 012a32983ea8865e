"""What the number of routing iterations does: accuracy, time and memory (Tsai et al. 2020, figure 4), schedule beside
schedule."""

import copy
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capsroute.analysis.figures import Made, Run, has_iterations, one_label, run_figure, takes_images
from capsroute.analysis.named_tensors import Named, along
from capsroute.analysis.style import Figure, drawing, grid, picture, plot
from capsroute.analysis.tracing import routing_iterations
from capsroute.inference.collect import evaluating
from capsroute.layers import CapsuleStack
from capsroute.models import ImageModel


@dataclass(frozen=True, eq=False)
class ByIterations(Named):
    """Each model under each number of routing iterations."""

    # Of all given images; weights are those trained with the model's own number.
    accuracy: Tensor = field(metadata=along("model, iterations"))
    milliseconds: Tensor = field(metadata=along("model, iterations"))  # median time of the first batch, inference
    # Largest total of tensors alive at once during inference, without weights and images.
    mebibytes: Tensor = field(metadata=along("model, iterations"))
    iterations: Tensor = field(metadata=along("iterations"))
    models: tuple[str, ...]
    batch: int
    device: str


def by_iterations(
    models: ImageModel | Mapping[str, ImageModel],
    images: Tensor,
    labels: Tensor,
    iterations: Sequence[int] = (1, 2, 3, 4, 5),
    repeats: int = 5,
    batch: int = 50,
) -> ByIterations:
    """Run models on images [n,c,h,w] with labels [n], with every number of iterations.

    Accuracy is that on all images; time (median of `repeats` runs) and memory are those of one `batch` of them.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> result = cr.analysis.by_iterations(model, torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]), (1, 3))
    >>> result.milliseconds.shape, result.batch
    (torch.Size([1, 2]), 4)
    """
    named = models if isinstance(models, Mapping) else {models.name: models}
    parts, labels = images.split(batch), labels.to(images.device)
    rows = [[_measure(model, parts, labels, count, repeats) for count in iterations] for model in named.values()]
    accuracy, milliseconds, mebibytes = torch.tensor(rows, dtype=torch.float64).unbind(2)
    return ByIterations(
        accuracy, milliseconds, mebibytes, torch.tensor(iterations), tuple(named), len(parts[0]), str(images.device)
    )


def schedules(model: ImageModel) -> dict[str, ImageModel]:
    """A model whose layers can step together, once under each schedule; other models as they are.

    >>> import capsroute as cr
    >>> list(cr.analysis.schedules(cr.create_model("capsnet_small", image_size=8)))
    ['capsnet_small']
    """
    stacks = [module for module in model.modules() if isinstance(module, CapsuleStack)]
    if not any(stack.schedule == "concurrent" for stack in stacks):
        return {model.name: model}
    result = {}
    for schedule in ("concurrent", "sequential"):
        result[schedule] = copy.deepcopy(model)
        for module in result[schedule].modules():
            if isinstance(module, CapsuleStack):
                module.schedule = schedule
    return result


def _measure(model: ImageModel, parts: Sequence[Tensor], labels: Tensor, count: int, repeats: int) -> list[float]:
    first, device = parts[0], parts[0].device
    with torch.no_grad(), evaluating(model), routing_iterations(model, count):
        predictions = torch.cat([model(part).scores.argmax(1) for part in parts])
        seconds = [_seconds(lambda: model(first), device) for _ in range(repeats)]
        memory = peak_bytes(lambda: model(first), device)
    return [float((predictions == labels).double().mean()), 1000 * statistics.median(seconds), memory / 2**20]


def _seconds(work: Callable, device: torch.device) -> float:
    wait_for(device)
    start = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - start


def wait_for(device: torch.device) -> None:
    """Until a GPU has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(work: Callable, device: torch.device) -> int:
    """Most bytes of new tensors alive at once while `work` runs: the allocator's count on a GPU, ours elsewhere."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    with _Meter() as meter:
        work()
    return meter.peak


class _Meter(TorchDispatchMode):
    """Adds up the storage of every tensor that an operator returns, until it is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}  # address of a storage -> bytes
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in given:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if not size or address in self.alive:
            return
        self.alive[address] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, address)

    def _free(self, address: int) -> None:
        self.now -= self.alive.pop(address, 0)


SPAN = 10  # percent of accuracy that an axis shows at least


@drawing
def draw_by_iterations(numbers: ByIterations) -> Figure:
    """Accuracy, time and memory over the number of routing iterations, a curve for each model or schedule.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.by_iterations(model, torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 3]), (1, 2))
    >>> figure = cr.analysis.draw_by_iterations(numbers)
    """
    figure = picture(7.2, 2.3)
    axes = grid(figure, 1, 3)[0]
    rows = (
        ("accuracy (%)", 100 * numbers.accuracy),
        (f"inference time (ms)\nbatch {numbers.batch}, {numbers.device}", numbers.milliseconds),
        ("memory of activations (MiB)", numbers.mebibytes),
    )
    for one, (label, values) in zip(axes, rows):
        plot(one, numbers.iterations, values, numbers.models)
        one.set(xlabel="routing iterations", ylabel=label, xticks=numbers.iterations.tolist())
    # A few images more or less are not to look like a cliff.
    middle, least = 100 * float(numbers.accuracy.max() + numbers.accuracy.min()) / 2, SPAN / 2
    low, high = axes[0].get_ylim()
    axes[0].set_ylim(min(low, middle - least), min(100.5, max(high, middle + least)))
    for one, values in zip(axes[1:], (numbers.milliseconds, numbers.mebibytes)):
        one.set_ylim(0, 1.1 * float(values.max()))
    if len(numbers.models) > 1:
        axes[0].legend()
    return figure


@run_figure(
    "by_iterations",
    "What iterations cost and give",
    "Accuracy on {200 test} images, inference time and memory of activations by the number of routing iterations, with "
    "the weights of this run. After Tsai et al. 2020, figure 4.",
    takes_images,
    has_iterations,
    one_label,
    place=51,
)
def _by_iterations_of(run: Run) -> Made:
    sample = run.sample(200)
    numbers = by_iterations(schedules(run.model), sample.images, sample.labels)
    return numbers, draw_by_iterations(numbers)
