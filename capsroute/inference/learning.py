"""Master coefficients beyond accumulation: learned by gradient, or given while the network (re)trains.

The two retraining ideas are future work of Zhao et al. 2019 (000, section 8); learning C itself is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute import losses
from capsroute.inference.accumulation import accumulate
from capsroute.inference.collect import as_batches
from capsroute.inference.eligible import routed_layers
from capsroute.inference.fast import Coefficients, M, with_coefficients
from capsroute.inference.master import MasterCoefficients
from capsroute.layers import FastRouter

__all__ = ["dynamic_then_fast", "finetune", "given_coefficients"]

LEARN = ("coefficients", "coefficients+transforms", "network", "all")
Report = Callable[[int, float], None]  # (epoch, mean loss)


def finetune(
    model: M,
    coefficients: Coefficients,
    batches: Iterable,
    learn: str = "coefficients",
    epochs: int = 3,
    learning_rate: float = 1e-3,
    report: Report | None = None,
) -> M:
    """A fast copy of a model, trained further by Adam on the model's own loss over class scores.

    learn: "coefficients" (C alone, the rest frozen), "coefficients+transforms" (C and W of the fast layers), "network"
    (everything but C: give a fresh model to retrain from nothing, 000, section 8) or "all". batches: training data, as
    in `accumulate`; never test data.

    >>> import torch, capsroute as cr
    >>> _ = torch.manual_seed(0)
    >>> model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    >>> digits = cr.data.load("digits", split="validation")
    >>> fast = cr.inference.finetune(model, "uniform", cr.data.Batches(digits, 32), epochs=1)
    >>> fast.class_capsules.routing.coefficients.unique().numel() > 1
    True
    """
    if learn not in LEARN:
        raise ValueError(f"learn: expected one of {', '.join(LEARN)}, got {learn!r}")
    fast = with_coefficients(model, coefficients, learned=learn != "network")
    layers = [layer for layer in routed_layers(fast).values() if isinstance(layer.routing, FastRouter)]
    learned: list[nn.Parameter] = list(fast.parameters())
    if learn.startswith("coefficients"):
        learned = [layer.routing.coefficients for layer in layers]  # type: ignore[misc]
        learned += [layer.W for layer in layers] if learn.endswith("transforms") else []
    whole = learn in ("network", "all")
    optimise(fast.train(whole), learned, batches, epochs, learning_rate, report)
    return fast.eval()


def dynamic_then_fast(
    model: M,
    batches: Iterable,
    dynamic_epochs: int = 2,
    fast_epochs: int = 2,
    learning_rate: float = 1e-3,
    report: Report | None = None,
    **accumulation,
) -> M:
    """A few epochs with dynamic routing, then master coefficients, then the network to the end with them given.

    The second idea of 000, section 8. The model itself is trained by the dynamic epochs; the fast copy is returned.
    `accumulation` goes to `accumulate`.

    >>> import torch, capsroute as cr
    >>> _ = torch.manual_seed(0)
    >>> model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    >>> batches = cr.data.Batches(cr.data.load("digits"), 32)
    >>> fast = cr.inference.dynamic_then_fast(model, batches, dynamic_epochs=2, fast_epochs=1)
    >>> fast.class_capsules.routing.name
    'fast'
    """
    optimise(model.train(), list(model.parameters()), batches, dynamic_epochs, learning_rate, report)
    master = accumulate(model, batches, **accumulation)
    return finetune(model, master, batches, "network", fast_epochs, learning_rate, report)


def given_coefficients(model: nn.Module) -> MasterCoefficients:
    """The coefficients that a fast model has, learned or not, to save or to use elsewhere.

    >>> import capsroute as cr
    >>> fast = cr.inference.with_coefficients(cr.create_model("capsnet_small", image_size=8), "uniform")
    >>> cr.inference.given_coefficients(fast)["class_capsules"].shape
    torch.Size([32, 10])
    """
    found = {
        name: layer.routing.coefficients.detach().double().clone()
        for name, layer in routed_layers(model).items()
        if isinstance(layer.routing, FastRouter)
    }
    return MasterCoefficients(found, torch.zeros(0, dtype=torch.int64), {"model": str(getattr(model, "name", ""))})


def optimise(
    model: nn.Module,
    learned: list[nn.Parameter],
    batches: Iterable,
    epochs: int,
    learning_rate: float = 1e-3,
    report: Report | None = None,
) -> None:
    """Train some parameters of a model in place, by Adam on the loss over class scores; all others stay."""
    chosen = {id(parameter) for parameter in learned}
    frozen = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimiser = torch.optim.Adam(learned, learning_rate)
    device = learned[0].device
    try:
        for epoch in range(epochs):
            total = [_step(model, optimiser, batch, device) for batch in as_batches(batches)]
            if report is not None:
                report(epoch, sum(total) / len(total))
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, batch: tuple, device: torch.device) -> float:
    images, labels = batch[0].to(device), batch[1].to(device)
    loss = _score_loss(str(model.default_loss), model(images, labels).scores, labels)
    if not math.isfinite(loss.item()):
        raise ValueError("learning_rate: the loss is no longer finite; choose a smaller one")
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def _score_loss(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    if name == "cross_entropy":
        return F.cross_entropy(scores, labels)
    if name == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(scores, F.one_hot(labels, scores.shape[1]).to(scores.dtype))
    return losses.spread(scores, labels) if name == "spread" else losses.margin(scores, labels)
