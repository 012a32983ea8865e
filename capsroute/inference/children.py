"""The children of the class layer, computed once: while only C or W is learned, all below them stays what it is.

A step on kept children is one small product instead of a whole network. Ours, not of a paper.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsroute.inference.coefficients import class_layer, routed_layers, uniform_coefficients, with_coefficients
from capsroute.inference.collect import as_batches, check_passes, evaluating
from capsroute.layers import flatten_positions
from capsroute.routing import lengths


class View(NamedTuple):
    """What one pass over the data gave."""

    poses: Tensor  # [n, i, a, k]
    labels: Tensor  # [n]


class Children:
    """Children of a class layer with their labels, as one or more passes over the data gave them.

    `keep_children` makes them; `finetune` takes them in place of batches of images.
    """

    def __init__(self, layer: str, views: list[View], batch_size: int):
        self.layer, self.views, self.batch_size = layer, views, batch_size

    def __len__(self) -> int:
        """Batches of an epoch."""
        return -(-len(self.views[0].labels) // self.batch_size)

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of (poses [b,i,a,k], labels [b]): view after view, as they came, then again in other orders."""
        turn, which = divmod(epoch, len(self.views))
        view = self.views[which]
        order = torch.arange(len(view.labels))
        if turn:
            order = torch.randperm(len(order), generator=torch.Generator().manual_seed(epoch))
        for rows in order.to(view.labels.device).split(self.batch_size):
            yield view.poses[rows], view.labels[rows]


def keep_children(model: nn.Module, batches: Iterable, views: int = 1, dtype: torch.dtype | None = None) -> Children:
    """Run a model over labelled batches and keep what its class layer was given.

    batches: as in `accumulate`. views: how many passes, each one an epoch of its own where the batches are augmented.
    dtype: what to keep them in; half precision halves the memory (50,000 images with 1024 children of 4 numbers take
    0.8 GB per view in float32).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    >>> children = cr.inference.keep_children(model, cr.data.load("digits", split="validation"))
    >>> children.views[0].poses.shape
    torch.Size([143, 32, 1, 8])
    >>> fast = cr.inference.finetune(model, "uniform", children, epochs=2)
    """
    if isinstance(views, bool) or not isinstance(views, int) or views < 1:
        raise ValueError(f"views: expected a whole number from 1, got {views!r}")
    check_passes(batches, views)
    name = class_layer(model, int(model.num_classes))  # type: ignore[arg-type]
    if name is None:
        raise ValueError("model: expected one whose last routed layer has one parent per class")
    # Below the class layer nothing depends on how that layer routes: equal coefficients are the cheapest.
    cheap = with_coefficients(model, uniform_coefficients(model, [name]))
    passes = as_batches(batches)
    kept = []
    for view in range(views):
        if hasattr(passes, "set_epoch"):
            passes.set_epoch(view)
        kept.append(list(_seen(cheap, name, passes, dtype)))
    if not kept[0]:
        raise ValueError("batches: expected at least one, got none")
    whole = [View(*(torch.cat(parts) for parts in zip(*view))) for view in kept]
    return Children(name, whole, len(kept[0][0].labels))


def class_scores(model: nn.Module, layer: str, poses: Tensor) -> Tensor:
    """Scores [b,classes] that a model gives to children [b,i,a,k] of its class layer."""
    capsules = routed_layers(model)[layer]
    routed = capsules(poses.to(capsules.W.dtype))
    return model.class_scores(routed) if hasattr(model, "class_scores") else lengths(routed.poses)  # type: ignore


def _seen(model: nn.Module, name: str, batches: Iterable, dtype: torch.dtype | None) -> Iterator[View]:
    layer = routed_layers(model)[name]
    given: list[tuple] = []
    hook = layer.register_forward_pre_hook(lambda layer, args: given.append(args))
    with hook, evaluating(model), torch.no_grad():
        for index, batch in enumerate(batches):
            given.clear()
            scores = model(batch[0].to(layer.W.device)).scores
            children = _only_children(given)
            if index == 0:
                _check_scores(model, name, children, scores)
            yield View(children.to(dtype or children.dtype), batch[1].to(children.device))


def _only_children(given: list[tuple]) -> Tensor:
    """The poses [b,i,a,k] that a layer was called with, once, without scores of the children."""
    if len(given) != 1:
        raise ValueError(f"model: expected its class layer to be called once a batch, it was {len(given)} times")
    children, scores = flatten_positions(*given[0][:2])
    if scores is not None:
        raise ValueError("model: expected children without scores; give `finetune` batches of images")
    return children


def _check_scores(model: nn.Module, name: str, children: Tensor, scores: Tensor) -> None:
    rounding = torch.finfo(scores.dtype).eps  # under autocast the whole network's scores come in half precision
    found, rtol, atol = class_scores(model, name, children), max(1e-3, 4 * rounding), max(1e-4, rounding)
    if not torch.allclose(found.float(), scores.float(), rtol=rtol, atol=atol):
        reason = "the class layer alone does not give its scores"
        raise ValueError(f"model: {reason}, so its children are not enough; give `finetune` batches of images")
