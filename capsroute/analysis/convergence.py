"""How routing converges: agreement, entropy of the coefficients and movement of the parents, iteration by iteration;
what the number of iterations does: accuracy, time and memory (Tsai et al. 2020, figure 4), schedule beside schedule."""

from __future__ import annotations

import copy
import math
import statistics
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from capsroute.analysis.figures import (
    Made,
    Named,
    Run,
    along,
    has_iterations,
    has_routing,
    one_label,
    run_figure,
    takes_images,
)
from capsroute.analysis.style import COLOURS, Axes, Figure, drawing, grid, picture, plot
from capsroute.analysis.tracing import Step, routed_names, routing_iterations, trace_routing
from capsroute.inference.collect import check_labels, evaluating
from capsroute.layers import CapsuleStack, Router
from capsroute.models import ImageModel
from capsroute.naming import check_one_of
from capsroute.routing import lengths
from capsroute.routing.checks import check_at_least

LEAST_ENTROPY, LEAST_ACCURACY = 0.005, 10  # that an axis shows; accuracy in per cent


@dataclass(frozen=True, eq=False)
class RoutingConvergence(Named):
    """What each iteration of one layer did; positions of a convolutional layer are averaged."""

    # Mean cosine between a parent and the votes for it, weighted by coefficient times length.
    agreement: Tensor = field(metadata=along("image, iteration, parent"))
    # Of a child's coefficients, mean over children: 1 all the same, 0 decided.
    entropy: Tensor = field(metadata=along("image, iteration"))
    # Distance of all parents from where they were, in parts of their length; NaN at first.
    movement: Tensor = field(metadata=along("image, iteration"))
    lengths: Tensor = field(metadata=along("image, iteration, parent"))  # of the parents' poses


@torch.no_grad()
def routing_convergence(
    model: ImageModel, images: Tensor, layer: str | None = None, iterations: int | None = None
) -> RoutingConvergence:
    """Watch a layer (None: the last) route images [b,c,h,w], optionally for more iterations than it is made for.

    Coefficients are scaled to add up to one before their entropy is taken: over the parents, over the children where
    children compete (routing pooling).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> result = cr.analysis.routing_convergence(model, torch.rand(2, 1, 8, 8), iterations=5)
    >>> result.agreement.shape, round(float(result.entropy[0, 0]), 4)
    (torch.Size([2, 5, 10]), 1.0)
    """
    names, traced = routed_names(model), trace_routing(model, images, iterations)
    name = names[-1] if layer is None else layer
    check_one_of("layer", name, traced.layers)
    trace = traced.layers[name]
    router, steps = trace.layer.routing, trace.steps

    def by_image(values: list[Tensor]) -> Tensor:  # each [b*positions, ...] -> [b, iteration, ...]
        stacked = torch.stack(values, 1)
        return stacked.unflatten(0, (len(images), -1)).mean(1)

    still = torch.full(steps[0].routed.poses.shape[:1], math.nan, device=images.device)
    moved = [still, *(_movement(before, after) for before, after in pairwise(steps))]
    return RoutingConvergence(
        by_image([agreement(step, router) for step in steps]),
        by_image([entropy(step, router) for step in steps]),
        by_image(moved),
        by_image([lengths(step.routed.poses) for step in steps]),
    )


def agreement(step: Step, router: Router) -> Tensor:
    """Mean cosine between each parent and the votes for it [b,j], weighted by coefficient times length.

    A vote adds that much to the parent. By coefficient alone, the many short votes of empty places decide the mean.
    """
    poses, weights = step.routed.poses, step.weights(router)  # [b, j, a, o], [b, i, j]
    along = (weights * step.votes.agreement(poses)).sum(1)
    most = (weights * step.votes.norms()).sum(1) * lengths(poses)
    return along / most.clamp_min(torch.finfo(poses.dtype).tiny)


def entropy(step: Step, router: Router) -> Tensor:
    """Entropy [b] of coefficients that add up to one, in parts of the largest possible one."""
    coefficients = step.routed.coefficients
    assert coefficients is not None
    axis = 1 if router.declared("competes_over") == "children" else 2
    count = coefficients.shape[axis]
    if count == 1:
        return coefficients.new_zeros(len(coefficients))
    shares = coefficients / coefficients.sum(axis, keepdim=True).clamp_min(torch.finfo(coefficients.dtype).tiny)
    return torch.special.entr(shares).sum(axis).mean(1) / math.log(count)


def _movement(before: Step, after: Step) -> Tensor:
    moved = (after.routed.poses - before.routed.poses).flatten(1).norm(dim=1)
    return moved / after.routed.poses.flatten(1).norm(dim=1).clamp_min(torch.finfo(moved.dtype).tiny)


@drawing
def draw_routing_convergence(numbers: RoutingConvergence) -> Figure:
    """Agreement, entropy and movement over iterations: the mean over images, and where 80 % of them lie.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> numbers = cr.analysis.routing_convergence(model, torch.rand(4, 1, 8, 8))
    >>> figure = cr.analysis.draw_routing_convergence(numbers)
    """
    figure = picture(7.2, 2.3)
    winner = numbers.lengths[:, -1].argmax(1)
    rows = torch.arange(numbers.size("image"), device=winner.device)
    others = torch.ones_like(numbers.lengths[:, -1], dtype=torch.bool)
    others[rows, winner] = False
    rest = numbers.agreement.transpose(1, 2)[others].unflatten(0, (len(rows), -1)) if others.any() else None
    axes = grid(figure, 1, 3)[0]
    _band(axes[0], numbers.agreement[rows, :, winner], 0, "longest parent")
    if rest is not None:
        _band(axes[0], rest.mean(1), 1, "the others")
        axes[0].legend()
    _band(axes[1], numbers.entropy, 0, "")
    low, high = axes[1].get_ylim()
    axes[1].set_ylim(min(low, high - LEAST_ENTROPY), high)  # coefficients that stay uniform are a flat line
    _band(axes[2], numbers.movement, 0, "")
    labels = ("agreement (mean cosine)", "entropy of coefficients\n(1 = uniform)", "movement of parents\n(relative)")
    for one, label in zip(axes, labels):
        one.set(xlabel="iteration", ylabel=label, xticks=range(1, numbers.size("iteration") + 1))
        one.grid(alpha=0.25, linewidth=0.5)
    return figure


def _band(axes: Axes, values: Tensor, at: int, name: str) -> None:
    """Mean and the middle 80 % of values [image, iteration]."""
    values = values.double().cpu()
    iterations = range(1, values.shape[1] + 1)
    low, high = values.quantile(torch.tensor([0.1, 0.9], dtype=torch.float64), 0).numpy()
    axes.fill_between(iterations, low, high, color=COLOURS[at], alpha=0.2, linewidth=0)
    axes.plot(iterations, values.mean(0).numpy(), color=COLOURS[at], marker="os"[at], label=name)


@run_figure(
    "routing_convergence",
    "Routing converges",
    "Agreement between votes and class capsules, entropy of the coefficients and movement of the class capsules over "
    "routing iterations: mean over {100 test} images, and where 80 % of them lie.",
    takes_images,
    has_routing,
    place=50,
)
def _routing_convergence_of(run: Run) -> Made:
    numbers = routing_convergence(run.model, run.sample(100).images, iterations=6)
    return numbers, draw_routing_convergence(numbers)


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
    if not len(images):
        raise ValueError("images: expected at least one, got none")
    check_labels(labels, images, next(iter(named.values())).num_classes)
    check_at_least("repeats", repeats, 1)
    check_at_least("batch", batch, 1)
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
    middle, least = 100 * float(numbers.accuracy.max() + numbers.accuracy.min()) / 2, LEAST_ACCURACY / 2
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
