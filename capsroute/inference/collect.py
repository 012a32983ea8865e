"""Run a network over labelled batches and look at its coefficients, one batch at a time (Zhao 2019, section 5)."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsroute.inference.coefficients import check_dynamic, routed_layers
from capsroute.layers import CapsuleStack, RoutedLayer, Router
from capsroute.routing import Routed

BATCH_SIZE = 256  # of a whole set that is given instead of batches


class Observed(NamedTuple):
    """What a network did with one batch."""

    coefficients: dict[str, Tensor]  # layer -> [b, i, j], or [b, h', w', i, j] of a convolutional layer
    scores: Tensor  # [b, classes]
    labels: Tensor  # [b]

    def own_columns(self, layer: str) -> Tensor:
        """The ground-truth column of each example, that of its own class [b,i]."""
        rows = torch.arange(len(self.labels), device=self.labels.device)
        return self.coefficients[layer][rows, :, self.labels]


def collect(
    model: nn.Module,
    batches: Iterable,
    num_classes: int | None = None,
    iteration: int | None = None,
    layers: list[str] | None = None,
) -> Iterator[Observed]:
    """Coefficients, scores and labels of every batch; nothing is kept.

    batches: an iterable of `(images [b,c,h,w], labels [b])`, or a `cr.data.ImageSet`. iteration: which routing
    iteration's coefficients, counted from 1; None for the last. The network computes the same whichever is asked for.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> [observed] = cr.inference.collect(model, [(torch.rand(2, 1, 8, 8), torch.tensor([3, 7]))])
    >>> observed.scores.shape
    torch.Size([2, 10])
    """
    chosen = routed_layers(model, layers)
    check_dynamic(chosen)
    device = next(iter(chosen.values())).W.device
    with ExitStack() as stack:
        stack.enter_context(evaluating(model))
        stack.enter_context(_reporting(model, chosen, iteration))
        for batch in as_batches(batches):
            images, labels, *_ = (batch, None) if isinstance(batch, Tensor) else (*batch, None)
            with torch.no_grad():
                scores, coefficients = _looked_at(model, chosen, images.to(device))
            labels = check_labels(labels, images, num_classes or scores.shape[1]).to(device)
            yield Observed(coefficients, scores, labels)


def _looked_at(model: nn.Module, layers: dict[str, RoutedLayer], images: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Scores [b,classes], and the coefficients of each layer: of the output of a model of ours, or as the layers of
    another module give them, which has nothing to do for it."""
    if hasattr(model, "routed_layers"):
        output = model(images, return_coefficients=True)
        return output.scores, {name: output.coefficients[name] for name in layers}
    seen: dict[str, Tensor] = {}

    def ask(layer: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        given = inspect.signature(layer.forward).bind(*args, **kwargs)
        given.arguments["return_coefficients"] = True
        return given.args, given.kwargs

    def keep(name: str, routed: Routed) -> None:
        if name in seen:
            raise ValueError(f"model: expected layer {name!r} to route once for an image, found it called again")
        assert routed.coefficients is not None
        seen[name] = routed.coefficients

    with ExitStack() as stack:
        for name, layer in layers.items():
            stack.enter_context(layer.register_forward_pre_hook(ask, with_kwargs=True))
            stack.enter_context(layer.register_forward_hook(lambda _, __, routed, name=name: keep(name, routed)))
        output = model(images)
    missing = [name for name in layers if name not in seen]
    if missing:
        why = "; a concurrent stack asks its layers for steps: take a sequential one" if _steps_together(model) else ""
        raise ValueError(f"model: expected every routed layer to be called, {', '.join(missing)} was not{why}")
    return (output if isinstance(output, Tensor) else output.scores), seen


def _steps_together(model: nn.Module) -> bool:
    return any(isinstance(module, CapsuleStack) and module.schedule == "concurrent" for module in model.modules())


def as_batches(data: Iterable) -> Iterable:
    """Batches as they are; a whole set of images in batches, in its own order."""
    from capsroute.data import Batches, ImageSet

    return Batches(data, BATCH_SIZE, shuffle=False) if isinstance(data, ImageSet) else data


def check_passes(batches: object, passes: int) -> None:
    """Batches can be gone through so often; a generator is empty after the first time."""
    if passes > 1 and isinstance(batches, Iterator):
        raise ValueError(f"batches: expected some that can be gone through {passes} times, got a one-way iterator")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode for a while; every module gets its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def _reporting(model: nn.Module, layers: dict[str, RoutedLayer], iteration: int | None) -> Iterator[None]:
    """Layers report the coefficients of this iteration; what they compute stays the same."""
    if iteration is None:
        yield
        return
    if _steps_together(model):
        raise ValueError(f"iteration: layers that step together have only their last coefficients, got {iteration!r}")
    with ExitStack() as stack:
        for name, layer in layers.items():
            shortened = _shortened(name, layer.routing, iteration)
            stack.enter_context(layer.routing.register_forward_hook(shortened, with_kwargs=True))
        yield


def _shortened(name: str, router: Router, iteration: int) -> Callable[..., Routed]:
    last = getattr(router, "iterations", 1)
    if isinstance(iteration, bool) or not isinstance(iteration, int) or not 1 <= iteration <= last:
        raise ValueError(f"iteration: layer {name!r} has iterations 1 to {last}, got {iteration!r}")
    shorter = copy.deepcopy(router)
    shorter.iterations = iteration  # type: ignore[assignment]

    def report(router: nn.Module, args: tuple, kwargs: dict, routed: Routed) -> Routed:
        return routed._replace(coefficients=shorter(*args, **kwargs).coefficients)

    return report


def check_labels(labels: Tensor | None, images: Tensor, num_classes: int) -> Tensor:
    """One class index for each of the images, or of whatever else [b,...] belongs to them."""
    if labels is None:
        raise ValueError("batches: expected (images, labels); coefficients are accumulated by class, got no labels")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        given = f"{labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"labels: expected one class index an image, int64 [{len(images)}], got {given}")
    if len(labels) and (int(labels.min()) < 0 or int(labels.max()) >= num_classes):
        given = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels: expected 0 to {num_classes - 1} for {num_classes} classes, got {given}")
    return labels
