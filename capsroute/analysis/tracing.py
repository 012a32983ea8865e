"""Watch a model route: for every routed layer what went in, and what came out of each iteration; where in the image a
map of child capsules looks, and such a map spread over the pixels."""

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from capsroute.inference.collect import evaluating
from capsroute.layers import CapsuleStack, RoutedLayer, Router
from capsroute.models import ImageModel, ModelOutput
from capsroute.naming import check_one_of
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least
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


def routed_names(model: ImageModel) -> list[str]:
    """Names of the layers that route, at least one."""
    names = list(model.routed_layers())
    if not names:
        raise ValueError(f"model: expected one with a routed layer, {model.name!r} has none")
    return names


def repeating_modules(model: nn.Module) -> list[Any]:
    """Routers and stacks that route in iterations."""
    return [m for m in model.modules() if isinstance(m, (Router, CapsuleStack)) and hasattr(m, "iterations")]


@contextmanager
def routing_iterations(model: nn.Module, iterations: int | None) -> Iterator[None]:
    """All layers route this often for a while; None leaves them as they are."""
    if iterations is not None:
        check_at_least("iterations", iterations, 1)
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


class Places(NamedTuple):
    """Centres, in pixels, of what the capsules of a map see."""

    rows: Tensor  # [h]
    columns: Tensor  # [w]


def child_places(model: ImageModel, layer: str | None = None) -> Places:
    """Where the children of a routed layer (None: the first), or of a routing pooling, look in the image.

    In a network without padding these are the middles of receptive fields, found by gradient. With padding the map is
    taken to cover the image evenly.

    >>> import capsroute as cr
    >>> cr.analysis.child_places(cr.create_model("capsnet")).rows.tolist()
    [8.0, 10.0, 12.0, 14.0, 16.0, 18.0]
    """
    name = layer or routed_names(model)[0]
    if name not in dict(model.named_modules()):
        check_one_of("layer", name, model.routed_layers(), also=", or a routing pooling")
    noise = torch.rand(1, *model.input_shape, generator=torch.Generator().manual_seed(0)).to(next(model.parameters()))
    height, width = _map(model, name, noise).shape[-2:]
    paddings = (getattr(module, "padding", 0) for module in model.modules() if not isinstance(module, RoutedLayer))
    if any(padding not in (0, (0, 0), "valid") for padding in paddings):
        sides = zip((height, width), model.input_shape[1:])
        return Places(*((torch.arange(count) + 0.5) * side / count - 0.5 for count, side in sides))
    with torch.enable_grad():
        # One copy of the image per position, so that one backward pass tells all their fields apart.
        images = noise.repeat(height * width, 1, 1, 1).requires_grad_()
        own = _map(model, name, images).flatten(-2).diagonal(dim1=0, dim2=-1)
        (gradient,) = torch.autograd.grad(own.square().sum(), images)
    seen = (gradient != 0).any(1).unflatten(0, (height, width))  # [h, w, H, W]
    return Places(_middles(seen[:, 0].any(2)), _middles(seen[0].any(1)))


def spread(maps: Tensor, places: Places, size: tuple[int, int]) -> Tensor:
    """Maps [..., h, w] as pictures [..., H, W]: linear between the places, constant for half a step around them.

    Farther out no capsule has its middle, and the pictures are NaN.

    >>> import torch
    >>> from capsroute.analysis import Places, spread
    >>> spread(torch.tensor([[0.0, 1.0]]), Places(torch.tensor([0.0]), torch.tensor([0.0, 2.0])), (1, 4))
    tensor([[0.0000, 0.5000, 1.0000, 1.0000]])
    """
    if maps.shape[-2:] != (len(places.rows), len(places.columns)):
        expected = (len(places.rows), len(places.columns))
        raise ValueError(f"maps: expected {expected} as there are places, got {tuple(maps.shape[-2:])}")
    down, across = (_interpolation(at, side).to(maps) for at, side in zip(places, size))
    return torch.where(_near(places, size).to(maps.device), down @ maps @ across.mT, torch.nan)


def _near(places: Places, size: tuple[int, int]) -> Tensor:
    """Pixels [H, W] not farther out than half a step."""
    near = []
    for at, side in zip(places, size):
        half = float(at[1] - at[0]) / 2 if len(at) > 1 else side
        pixels = torch.arange(side)
        near.append((pixels >= at[0] - half) & (pixels <= at[-1] + half))
    return near[0][:, None] & near[1]


def _map(model: ImageModel, name: str, images: Tensor) -> Tensor:
    """What goes into a layer: capsules [b,n,a,k,h,w], or features [b,c,h,w] of a pooling."""
    given: list[Tensor] = []
    hook = model.get_submodule(name).register_forward_pre_hook(lambda module, args: given.append(args[0]))
    with evaluating(model), watching(model) as layers, hook:
        model(images)
    maps = (layers[name].children if name in layers else given)[0]
    if name in layers and maps.dim() != 6:
        raise ValueError(f"layer: the children of {name!r} are a list, not a map over the image")
    return maps


def _middles(seen: Tensor) -> Tensor:
    """Middles [p] of what each position sees of a side, seen [p, side]."""
    first = seen.float().argmax(1)
    last = seen.shape[1] - 1 - seen.flip(1).float().argmax(1)
    return ((first + last) / 2).cpu()


def _interpolation(at: Tensor, side: int) -> Tensor:
    """The matrix [side, p] that interpolates linearly from values at ascending places `at` [p]."""
    columns = [np.interp(np.arange(side), at.cpu().numpy(), column) for column in np.eye(len(at))]
    return torch.from_numpy(np.stack(columns, 1))
