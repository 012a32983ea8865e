"""Watch a model route: for every routed layer what went in, and what came out of each iteration."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsroute.inference.collect import evaluating
from capsroute.layers import CapsuleStack, RoutedLayer, Router
from capsroute.models import ImageModel, ModelOutput
from capsroute.routing import Routed
from capsroute.votes import Votes


class Step(NamedTuple):
    """One iteration, as the routing algorithm saw it; in a convolutional layer b runs over (sample, row, column)."""

    votes: Votes  # [b, i, j, a, o]
    scores: Tensor | None  # of the children [b, i], where the algorithm takes them
    routed: Routed  # poses [b, j, a, o], coefficients [b, i, j]

    def weights(self, router: Router) -> Tensor:
        """What each vote counts in its parent [b,i,j]: the coefficient, times the child's score if it has one."""
        assert self.routed.coefficients is not None
        if self.scores is None:
            return self.routed.coefficients
        active = self.scores.sigmoid() if router.score_kind == "logit" else self.scores
        return self.routed.coefficients * active.unsqueeze(2)


@dataclass(eq=False)
class LayerTrace:
    """What one layer did."""

    layer: RoutedLayer
    children: list[Tensor] = field(default_factory=list)  # poses that came in: [b,i,a,k], or a map [b,n,a,k,h,w]
    steps: list[Step] = field(default_factory=list)


class Traced(NamedTuple):
    """A model's answer, and how it came about."""

    output: ModelOutput
    layers: dict[str, LayerTrace]


def trace_routing(model: ImageModel, images: Tensor, iterations: int | None = None) -> Traced:
    """Run a model on images [b,c,h,w] and keep every routing iteration of every layer.

    The iterations are those of the very run: layers that route to the end before the next one begins are shown their
    votes again with 1, 2, ... iterations; layers that step together are watched at each step. `iterations` lets all
    layers route longer or shorter than they were made to.

    >>> import torch, capsroute as cr
    >>> traced = cr.analysis.trace_routing(cr.create_model("capsnet_small", image_size=8), torch.rand(2, 1, 8, 8))
    >>> [step.routed.coefficients.shape for step in traced.layers["class_capsules"].steps]
    [torch.Size([2, 32, 10]), torch.Size([2, 32, 10]), torch.Size([2, 32, 10])]
    """
    with torch.no_grad(), evaluating(model), routing_iterations(model, iterations), watching(model) as layers:
        # Asked for coefficients, layers take every step; else not those that no longer reach the result.
        return Traced(model(images, return_coefficients=True), layers)


def repeating_modules(model: nn.Module) -> list[Any]:
    """Routers and stacks that route in iterations."""
    return [m for m in model.modules() if isinstance(m, (Router, CapsuleStack)) and hasattr(m, "iterations")]


@contextmanager
def routing_iterations(model: nn.Module, iterations: int | None) -> Iterator[None]:
    """All layers route this often for a while; None leaves them as they are."""
    if iterations is not None and (isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1):
        raise ValueError(f"iterations: expected a whole number >= 1, got {iterations!r}")
    repeating = repeating_modules(model)
    before = [module.iterations for module in repeating]
    try:
        for module in repeating:
            module.iterations = iterations or module.iterations  # type: ignore[assignment]
        yield
    finally:
        for module, count in zip(repeating, before):
            module.iterations = count


@contextmanager
def watching(model: ImageModel) -> Iterator[dict[str, LayerTrace]]:
    """What every routed layer does, filled in as the model runs; the model computes what it always does."""
    traces = {name: LayerTrace(layer) for name, layer in model.routed_layers().items()}
    with ExitStack() as stack:
        for trace in traces.values():
            layer, router = trace.layer, trace.layer.routing
            stack.enter_context(layer.register_forward_pre_hook(partial(_keep_children, trace)))
            stack.enter_context(_replaced(layer, "step", partial(_step_layer, trace, layer.step)))
            if not router.can_step():
                stack.enter_context(router.register_forward_hook(partial(_repeat, trace), with_kwargs=True))
            else:
                stack.enter_context(_replaced(router, "step", partial(_step_router, trace, router.step)))
        yield traces


def _keep_children(trace: LayerTrace, layer: nn.Module, args: tuple) -> None:
    trace.children.append(args[0])


def _step_layer(trace: LayerTrace, step: Callable[..., Routed], poses: Tensor, *args: Any) -> Routed:
    trace.children.append(poses)
    return step(poses, *args)


def _step_router(
    trace: LayerTrace,
    step: Callable[..., Routed],
    votes: Votes,
    scores: Tensor | None,
    parents: Tensor | None,
    coefficients: bool = True,
) -> Routed:
    """A step with its coefficients, whether they are asked for or not."""
    routed = step(votes, scores, parents, True)
    trace.steps.append(Step(votes, scores, routed))
    return routed


def _repeat(trace: LayerTrace, router: nn.Module, args: tuple, kwargs: dict, routed: Routed) -> None:
    """The iterations of an algorithm that runs in one call: the same votes, routed once, twice, ..."""
    votes, scores = args[0], args[1] if len(args) > 1 else None
    for count in range(1, getattr(router, "iterations", 1)):
        shorter = copy.copy(router)  # shares parameters, has its own number of iterations
        shorter.iterations = count  # type: ignore[assignment]
        trace.steps.append(Step(votes, scores, shorter.forward(*args, **kwargs)))
    trace.steps.append(Step(votes, scores, routed))


@contextmanager
def _replaced(module: nn.Module, name: str, function: Callable[..., Any]) -> Iterator[None]:
    """A method of one module replaced for a while."""
    setattr(module, name, function)
    try:
        yield
    finally:
        delattr(module, name)
