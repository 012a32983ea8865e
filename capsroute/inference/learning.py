"""Master coefficients beyond accumulation: learned by gradient, or given while the network (re)trains.

The two retraining ideas are future work of Zhao et al. 2019, section 8; learning C itself is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sized
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute import losses
from capsroute.inference.accumulation import accumulate
from capsroute.inference.children import Children, class_scores
from capsroute.inference.coefficients import Coefficients, M, MasterCoefficients, routed_layers, with_coefficients
from capsroute.inference.collect import as_batches, check_labels, check_passes
from capsroute.naming import check_one_of
from capsroute.routing.checks import check_at_least, check_finite

# What is learned: coefficients C, transforms W of the fast layers, and everything else.
LEARN = ("coefficients", "transforms", "coefficients+transforms", "network", "all")
WARMUP = 0.1  # part of the training in which rates rise
Report = Callable[[int, float], None]  # (epoch, mean loss)


def finetune(
    model: M,
    coefficients: Coefficients,
    batches: Iterable | Children,
    learn: str = "coefficients",
    epochs: int = 3,
    learning_rate: float = 3e-4,
    coefficient_rate: float = 0.2,
    sharpness: float | None = 20.0,
    report: Report | None = None,
) -> M:
    """A fast copy of a model, trained further by Adam on its class scores, at rates that rise briefly and fall to zero.

    learn: "coefficients" (C alone, the rest frozen), "transforms" (W of the fast layers, C as given),
    "coefficients+transforms", "network" (everything but C; a fresh model is then trained from nothing, which section 8
    of the paper suggests) or "all". batches: training data, as in `accumulate`, never test data; or what
    `keep_children` made of them, where nothing below the class layer is learned: the same steps without the trunk.

    learning_rate is that of weights, coefficient_rate that of C, as a share of its mean size. sharpness: capsule
    lengths times this number are the logits of a cross-entropy, because given coefficients make other lengths than
    routing does, and the margin loss first of all drags those back; None: the model's own loss.

    >>> import torch, capsroute as cr
    >>> _ = torch.manual_seed(0)
    >>> model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    >>> digits = cr.data.load("digits", split="validation")
    >>> fast = cr.inference.finetune(model, "uniform", cr.data.Batches(digits, 32), epochs=1)
    >>> fast.class_capsules.routing.coefficients.unique().numel() > 1
    True
    """
    check_one_of("learn", learn, LEARN)
    check_at_least("epochs", epochs, 0)
    for name, rate in (("learning_rate", learning_rate), ("coefficient_rate", coefficient_rate)):
        check_finite(name, rate)
        if rate < 0:
            raise ValueError(f"{name}: expected a number >= 0, got {rate!r}")
    check_passes(batches, epochs)
    whole = learn in ("network", "all")
    fast = with_coefficients(model, coefficients, learned=learn in ("coefficients", "coefficients+transforms", "all"))
    layers = {name: routed_layers(fast)[name] for name in _given(fast)}
    if isinstance(batches, Children) and (whole or list(layers) != [batches.layer]):
        learned_too = "the whole network" if whole else f"layers {', '.join(layers)}"
        raise ValueError(f"batches: kept children serve to learn layer {batches.layer!r} alone, not {learned_too}")
    C = [given for given in _given(fast).values() if isinstance(given, nn.Parameter)]
    weights = list(fast.parameters()) if whole else [layer.W for layer in layers.values() if "transforms" in learn]
    groups = [{"params": [p], "lr": coefficient_rate * float(p.detach().abs().mean())} for p in C]
    groups.append({"params": [p for p in weights if all(p is not c for c in C)], "lr": learning_rate})
    optimise(fast.train(whole), groups, batches, epochs, sharpness, report)
    return fast.eval()


def dynamic_then_fast(
    model: M,
    batches: Iterable,
    dynamic_epochs: int = 2,
    fast_epochs: int = 2,
    learning_rate: float = 1e-3,
    report: Report | None = None,
    **accumulation: Any,
) -> M:
    """A few epochs with dynamic routing, then master coefficients, then the network to the end with them given.

    The second idea of Zhao et al. 2019, section 8. The model itself is trained by the dynamic epochs; the fast copy is
    returned.
    Both halves minimise the model's own loss, each at a rate that falls to zero.
    `accumulation` goes to `accumulate`.

    >>> import torch, capsroute as cr
    >>> _ = torch.manual_seed(0)
    >>> model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    >>> batches = cr.data.Batches(cr.data.load("digits"), 32)
    >>> fast = cr.inference.dynamic_then_fast(model, batches, dynamic_epochs=2, fast_epochs=1)
    >>> fast.class_capsules.routing.name
    'fast'
    """
    check_passes(batches, dynamic_epochs + 1 + fast_epochs)  # coefficients are accumulated in between
    groups = [{"params": list(model.parameters()), "lr": learning_rate}]
    optimise(model.train(), groups, batches, dynamic_epochs, report=report)
    master = accumulate(model, batches, **accumulation)
    return finetune(
        model, master, batches, "network", fast_epochs, learning_rate=learning_rate, sharpness=None, report=report
    )


def given_coefficients(model: nn.Module) -> MasterCoefficients:
    """The coefficients that a fast model has, learned or not, to save or to use elsewhere.

    >>> import capsroute as cr
    >>> fast = cr.inference.with_coefficients(cr.create_model("capsnet_small", image_size=8), "uniform")
    >>> cr.inference.given_coefficients(fast)["class_capsules"].shape
    torch.Size([32, 10])
    """
    found = {name: given.detach().double().clone() for name, given in _given(model).items()}
    return MasterCoefficients(found, torch.zeros(0, dtype=torch.int64), {"model": str(getattr(model, "name", ""))})


def _given(model: nn.Module) -> dict[str, Tensor]:
    """The coefficients [i,j] of the layers that were given some."""
    found = {name: layer.routing.given_coefficients() for name, layer in routed_layers(model).items()}
    return {name: given for name, given in found.items() if given is not None}


def optimise(
    model: nn.Module,
    groups: list[dict],
    batches: Iterable | Children,
    epochs: int,
    sharpness: float | None = None,
    report: Report | None = None,
) -> None:
    """Train some parameters of a model in place, by Adam on the loss over class scores; all others stay.

    groups: as an optimiser takes them, each with its highest rate `lr`.
    """
    learned = [parameter for group in groups for parameter in group["params"]]
    chosen = {id(parameter) for parameter in learned}
    frozen = [p for p in model.parameters() if id(p) not in chosen and p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    optimiser = torch.optim.Adam([group for group in groups if group["params"]])
    highest = [group["lr"] for group in optimiser.param_groups]
    name, device = str(model.default_loss), learned[0].device
    kept = batches if isinstance(batches, Children) else None
    try:
        for epoch in range(epochs):
            total = []
            source: Any = as_batches(batches) if kept is None else kept.epoch(epoch)  # type: ignore[arg-type]
            sized = kept or source
            steps = len(sized) if isinstance(sized, Sized) else 0
            for index, (inputs, labels, *_) in enumerate(source):
                for group, rate in zip(optimiser.param_groups, highest):
                    group["lr"] = rate * share_of_rate((epoch + (index / steps if steps else 0.0)) / epochs)
                inputs, labels = inputs.to(device), labels.to(device)
                scores = model(inputs).scores if kept is None else class_scores(model, kept.layer, inputs)
                if labels.shape != scores.shape:  # no mask of classes; a cross-entropy passes over -100
                    check_labels(labels, scores, scores.shape[1])
                if name == "margin" and sharpness is not None:
                    loss = F.cross_entropy(sharpness * scores, labels)
                else:
                    loss = losses.on_scores(name, scores, labels)
                total.append(loss.item())
                if not math.isfinite(total[-1]):
                    raise ValueError("learning_rate: the loss is no longer finite; choose a smaller one")
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
            if not total:
                raise ValueError("batches: expected at least one, got none")
            if report is not None:
                report(epoch, sum(total) / len(total))
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)


def share_of_rate(progress: float) -> float:
    """What part of the highest rate is used when this part of the training is over.

    It rises from a tenth, because Adam's first steps are of full size whatever the gradient, and falls to zero.

    >>> from capsroute.inference.learning import share_of_rate
    >>> [round(share_of_rate(progress), 2) for progress in (0.0, 0.1, 0.5, 1.0)]
    [0.1, 1.0, 0.59, 0.0]
    """
    if progress < WARMUP:
        return 0.1 + 0.9 * progress / WARMUP
    return 0.5 + 0.5 * math.cos(math.pi * (progress - WARMUP) / (1 - WARMUP))
