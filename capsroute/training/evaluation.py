"""Measuring a trained network: accuracy on held-out data, with its own routing, with master and with uniform
coefficients."""

import copy
import inspect
import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from capsroute.inference import refusal, uniform_coefficients, with_coefficients
from capsroute.inference.collect import as_batches, evaluating
from capsroute.layers import RoutedLayer, RoutingPool2d
from capsroute.models import ModelOutput
from capsroute.training.distributed import World
from capsroute.training.precision import Precision, sums_dtype
from capsroute.training.text import Padded

# What the variants of a model are called in tables.
VARIANTS = {"as_trained": "as trained", "fast": "master coefficients", "uniform": "uniform coefficients"}

_LABELLED: dict[type, bool] = {}  # whether models of a class take labels: looking takes as long as a small kernel


class ScoresAlone(ModelOutput):
    """The output of a module that gives a tensor of scores and nothing else."""

    __slots__ = ()


def call_model(model: nn.Module, inputs: Tensor | Padded, labels: Tensor | None = None) -> ModelOutput:
    """The output for a batch of images, or of texts with their mask; of any module that gives scores."""
    if isinstance(inputs, Padded):
        return model(inputs.hidden, labels, mask=inputs.mask)
    output = model(inputs, labels) if _takes_labels(model) else model(inputs)
    if isinstance(output, Tensor):
        return ScoresAlone(output)
    if not isinstance(getattr(output, "scores", None), Tensor):
        raise ValueError(f"model: expected scores [b,classes], or an output that has them, got {type(output).__name__}")
    return output


def _takes_labels(model: nn.Module) -> bool:
    """Whether a model, compiled or shared between processes or not, takes the labels that its decoder is shown."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            kind = type(model)
            if kind not in _LABELLED:
                _LABELLED[kind] = "labels" in inspect.signature(kind.forward).parameters
            return _LABELLED[kind]
        model = inner


def evaluate(
    model: nn.Module,
    batches: Iterable,
    two_labels: str = "top_two",
    precision: Precision | None = None,
    loss: Callable[..., Tensor] | None = None,
    world: World | None = None,
) -> dict[str, float]:
    """Accuracy, number of images and images per second of a model on an `ImageSet` or batches of `(images, labels)`.

    Images with two labels count when both digits, and no other, are found: among the two highest scores ("top_two") or
    among the scores above one half ("threshold"); `digit_accuracy` then is the share of single decisions that are
    right. `loss(output, images, labels)` adds the mean of a loss. Under several processes each gives its share.

    >>> import capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> metrics = cr.training.evaluate(model, cr.data.Batches(cr.data.load("digits", "test"), 100, shuffle=False))
    >>> sorted(metrics)
    ['accuracy', 'images', 'images_per_second', 'seconds']
    """
    device = next(iter(model.parameters())).device
    precision = precision or Precision("fp32", device)
    sums: Tensor | None = None
    names: list[str] = []
    start = time.perf_counter()
    with evaluating(model), torch.no_grad():
        for inputs, labels, *_ in as_batches(batches):
            with precision.autocast():
                output = call_model(model, inputs)
            measured = _measure(output.scores, labels, str(getattr(model, "score_kind", "logit")), two_labels)
            if loss is not None:
                measured["loss"] = loss(output, inputs, labels) * len(labels)
            names = list(measured)
            row = torch.stack([value.to(sums_dtype(device)) for value in measured.values()])
            sums = row if sums is None else sums + row
    if sums is None:
        raise ValueError("batches: expected at least one batch, got none")
    totals = dict(zip(names, (world.sum(sums) if world else sums).tolist(), strict=True))
    seconds = time.perf_counter() - start
    if totals.pop("outside"):
        raise ValueError("labels: some are of classes that the model has no score for")
    images = totals.pop("images")
    means = {name: total / images for name, total in totals.items()}
    return {**means, "images": int(images), "seconds": seconds, "images_per_second": images / seconds}


def _measure(scores: Tensor, labels: Tensor, kind: str, two_labels: str) -> dict[str, Tensor]:
    """Sums over a batch."""
    found = correct_predictions(scores, labels, kind, two_labels)
    measured = {"accuracy": found.all(1).sum(), "images": torch.full((), len(labels), device=scores.device)}
    # Counted, not looked at: a GPU is not waited for.
    unknown = (labels >= scores.shape[1]) | (labels < (0 if labels.dim() == 1 else -1))
    if labels.is_floating_point():
        unknown = torch.zeros_like(unknown)
    measured["outside"] = unknown.sum()
    if labels.dim() == 2:
        measured["digit_accuracy"] = found.float().mean(1).sum()
    return measured


def correct_predictions(scores: Tensor, labels: Tensor, kind: str = "logit", two_labels: str = "top_two") -> Tensor:
    """Which decisions are right: [b,1] for labels [b] or soft targets [b,classes], [b,classes] for labels [b,2].

    >>> import torch
    >>> from capsroute.training.evaluation import correct_predictions
    >>> scores = torch.tensor([[0.9, 0.1, 0.8], [0.9, 0.8, 0.1]])
    >>> correct_predictions(scores, torch.tensor([[2, 0], [0, 2]]), "length").all(1)
    tensor([ True, False])
    """
    if labels.dim() and len(labels) != len(scores):
        raise ValueError(f"labels: expected {len(scores)}, one for each image, got {len(labels)}")
    each_alone = two_labels == "threshold" and labels.dim() == 2 and not labels.is_floating_point()
    if scores.shape[1] < 2 and not each_alone:
        raise ValueError(f"scores: expected those of two classes or more, got {list(scores.shape)}")
    if labels.dim() == 1:
        return (scores.argmax(1) == labels)[:, None]
    if labels.is_floating_point():
        if labels.shape != scores.shape:
            own = f"targets {list(scores.shape)}, as the scores are"
            raise ValueError(f"labels: expected {own}, got {list(labels.shape)}")
        return (scores.argmax(1) == labels.argmax(1))[:, None]
    from capsroute.data import multi_hot

    wanted = multi_hot(labels, scores.shape[1]).bool()
    if each_alone:
        return (scores > (0.0 if kind == "logit" else 0.5)) == wanted
    if scores.shape[1] == 2:
        both = "the two highest of two scores are both, whatever they are; two_labels='threshold' asks each alone"
        raise ValueError(f"labels: expected [b] for two classes, got {list(labels.shape)}: {both}")
    chosen = torch.zeros_like(wanted).scatter_(1, scores.topk(2, dim=1).indices, True)
    return chosen == wanted


def uniform_variant(model: nn.Module) -> nn.Module | None:
    """A copy of `model` whose coefficients are all equal, or None where it does not route: what routing adds is seen
    beside it.

    Layers that can be given coefficients are; the others become what their router says it is with equal ones. The
    betas, and so the scores that EM and Heinsen routing make of equal coefficients, stay as trained. A ValueError
    names the router that does not say.
    """
    given = replaceable_layers(model)
    equal = with_coefficients(model, uniform_coefficients(model, given)) if given else copy.deepcopy(model)
    routing = [module for module in equal.modules() if isinstance(module, (RoutedLayer, RoutingPool2d))]
    others = [module for module in routing if module.routing.adapts]
    for module in others:
        module.routing = module.routing.uniform()
    return equal if given or others else None


def replaceable_layers(model: nn.Module) -> list[str]:
    """Layers that route, and take other coefficients in place of those."""
    layers = model.routed_layers() if hasattr(model, "routed_layers") else {}  # type: ignore[operator]
    return [name for name, layer in layers.items() if layer.routing.adapts and refusal(layer) is None]
