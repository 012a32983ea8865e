"""Coupling coefficients as heatmaps over the image (Zhao & Huang 2019, section 4.2 and table 3), and the master
coefficients themselves: which children count for which parent."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from capsroute.analysis.figures import Made, Named, Run, along, has_coupling, kept_master, run_figure, takes_images
from capsroute.analysis.style import (
    HEAT,
    Figure,
    colour_bar,
    drawing,
    grid,
    label_outer,
    name_of,
    overlay,
    picture,
    show,
)
from capsroute.analysis.tracing import LayerTrace, Places, child_places, spread, trace_routing
from capsroute.inference import MasterCoefficients, class_layer
from capsroute.inference.collect import evaluating
from capsroute.layers import RoutingPool2d
from capsroute.models import ImageModel
from capsroute.naming import check_one_of


@dataclass(frozen=True, eq=False)
class CouplingMaps(Named):
    """How strongly each place of an image is coupled to each parent."""

    images: Tensor = field(metadata=along("image, channel, row, column"))
    # The same as `coarse`, spread over the image's pixels.
    maps: Tensor = field(metadata=along("image, parent, row, column"))
    # Mean over the types of child capsule at a place.
    coarse: Tensor = field(metadata=along("image, parent, map row, map column"))
    predictions: Tensor = field(metadata=along("image"))
    by_class: bool = True  # whether the parents are the classes


def coupling_maps(model: ImageModel, images: Tensor, layer: str | None = None) -> CouplingMaps:
    """Coefficients of a layer (None: the first whose children are a map) over images [b,c,h,w].

    Parents of a routing pooling are its groups of channels; of a capsule layer, its parent capsules.

    >>> import torch, capsroute as cr
    >>> result = cr.analysis.coupling_maps(cr.create_model("capsnet_small", image_size=8), torch.rand(2, 1, 8, 8))
    >>> result.maps.shape, result.coarse.shape
    (torch.Size([2, 10, 8, 8]), torch.Size([2, 10, 2, 2]))
    """
    pools = {name: module for name, module in model.named_modules() if isinstance(module, RoutingPool2d)}
    if pools and (layer is None or layer in pools):
        name = layer or next(iter(pools))
        return _pooled(model, images, name, pools[name])
    traced = trace_routing(model, images)
    name = layer or first_map(traced.layers)
    check_one_of("layer", name, [*traced.layers, *pools])
    coarse = step_maps(traced.layers[name], -1)
    pixels = spread(coarse, child_places(model, name), model.input_shape[1:])
    by_class = name == class_layer(model, model.num_classes)
    return CouplingMaps(images, pixels, coarse, traced.output.scores.argmax(1), by_class)


def first_map(layers: dict[str, LayerTrace]) -> str:
    """The first layer whose children are a map over the image and are routed all together."""
    for name, trace in layers.items():
        coefficients = trace.steps[-1].routed.coefficients
        assert coefficients is not None
        if trace.children[0].dim() == 6 and len(coefficients) == len(trace.children[0]):
            return name
    raise ValueError("model: expected a routed layer whose children are a map over the image, found none")


def step_maps(trace: LayerTrace, step: int) -> Tensor:
    """Coefficients of one iteration [b,i,j] as maps [b,j,h,w], the mean over types of child capsule."""
    types, height, width = (trace.children[0].shape[at] for at in (1, 4, 5))
    coefficients = trace.steps[step].routed.coefficients
    assert coefficients is not None
    if len(coefficients) != len(trace.children[0]):
        raise ValueError("layer: a convolutional layer has coefficients at each position, no one map over the image")
    return coefficients.unflatten(1, (types, height, width)).mean(1).movedim(3, 1)


def _pooled(model: ImageModel, images: Tensor, name: str, pool: RoutingPool2d) -> CouplingMaps:
    features: list[Tensor] = []
    with torch.no_grad(), evaluating(model):
        with pool.register_forward_pre_hook(lambda module, args: features.append(args[0])):
            output = model(images)
        _, coarse = pool(features[0], return_coefficients=True)
    # Where a capsule is a patch of the map, it lies in the middle of its patch.
    patches = zip(child_places(model, name), coarse.shape[2:])
    places = Places(*(at.unflatten(0, (count, -1)).mean(1) for at, count in patches))
    pixels = spread(coarse, places, model.input_shape[1:])
    return CouplingMaps(images, pixels, coarse, output.scores.argmax(1), by_class=False)


@drawing
def draw_coupling_maps(numbers: CouplingMaps, classes: Sequence[str] | None = None) -> Figure:
    """Images above, the coupling to the predicted class over them below (the mean over parents that are no classes).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> figure = cr.analysis.draw_coupling_maps(cr.analysis.coupling_maps(model, torch.rand(4, 1, 8, 8)))
    """
    count = numbers.size("image")
    by_class = numbers.by_class
    chosen = numbers.maps[torch.arange(count), numbers.predictions.cpu()] if by_class else numbers.maps.mean(1)
    seen = chosen[~chosen.isnan()]
    figure = picture(0.95 * count + 1.5, 2.15)
    axes = grid(figure, 2, count)
    for at in range(count):
        show(axes[0][at], numbers.images[at])
        axes[0][at].set_title(name_of(int(numbers.predictions[at]), classes))
        drawn = overlay(axes[1][at], numbers.images[at], chosen[at], float(seen.min()), float(seen.max()))
    label_outer(axes[0][0], "input")
    label_outer(axes[1][0], "coupling to\nprediction" if by_class else "coupling,\nmean of parents")
    colour_bar(figure, drawn, [*axes[0], *axes[1]], "coefficient")
    return figure


@run_figure(
    "coupling_maps",
    "Coupling over the image",
    "Coupling coefficients between places of the image and the predicted class (mean over the types of capsule at a "
    "place), drawn where the capsules' receptive fields have their middle. After Zhao and Huang 2019, table 3.",
    takes_images,
    has_coupling,
    place=40,
)
def _coupling_maps_of(run: Run) -> Made:
    sample = run.sample(8)
    numbers = coupling_maps(run.model, sample.images)
    numbers = replace(numbers, images=sample.images)
    return numbers, draw_coupling_maps(numbers, run.test.classes)


@dataclass(frozen=True, eq=False)
class MasterMatrix(Named):
    """The coefficients of one layer."""

    coefficients: Tensor = field(metadata=along("child, parent"))
    layer: str


def master_matrix(master: MasterCoefficients, layer: str | None = None) -> MasterMatrix:
    """The master coefficients of a layer; None: the last.

    >>> import torch, capsroute as cr
    >>> master = cr.inference.MasterCoefficients({"class_capsules": torch.rand(32, 10)}, torch.ones(10).long())
    >>> cr.analysis.master_matrix(master).layer
    'class_capsules'
    """
    name = list(master)[-1] if layer is None else layer
    check_one_of("layer", name, master)
    return MasterMatrix(master[name].cpu(), name)


@drawing
def draw_master_matrix(numbers: MasterMatrix) -> Figure:
    """Children from left to right, parents from top to bottom.

    >>> import torch, capsroute as cr
    >>> figure = cr.analysis.draw_master_matrix(cr.analysis.MasterMatrix(torch.rand(32, 10), "class_capsules"))
    """
    figure = picture(7.2, 2.2)
    ((axes,),) = grid(figure, 1, 1)
    drawn = axes.imshow(numbers.coefficients.T.numpy(), aspect="auto", interpolation="nearest", cmap=HEAT)
    axes.set(title=numbers.layer, xlabel="child", ylabel="parent")
    colour_bar(figure, drawn, axes, "coefficient")
    return figure


@run_figure(
    "master_matrix",
    "Master coefficients of the run",
    "Which children count for which parent when nothing is routed.",
    kept_master,
    place=16,
)
def _master_matrix_of(run: Run) -> Made:
    numbers = master_matrix(run.master)
    return numbers, draw_master_matrix(numbers)
