"""Optimisers by name, and the learning rate as a function of the step alone, so that resuming needs no state;
and averaged weights: a copy of the model that follows the trained one slowly, and is the one evaluated."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from capsroute.training.sections import OptimiserSection, ScheduleSection


def make_optimiser(model: nn.Module, settings: OptimiserSection) -> torch.optim.Optimizer:
    """The optimiser of a recipe. Weight decay is for weights that are multiplied with features: see `decays`.

    >>> import torch
    >>> from capsroute.training.optimisers import make_optimiser
    >>> from capsroute.training.sections import OptimiserSection
    >>> type(make_optimiser(torch.nn.Linear(2, 3), OptimiserSection(name="radam"))).__name__
    'RAdam'
    """
    owners = {
        parameter: (module, name)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trained:
        raise ValueError("model: expected parameters that can be trained, got none")
    groups: list[dict] = [{"params": trained}]
    if settings.weight_decay:
        decayed = [parameter for parameter in trained if decays(*owners[parameter])]
        spared = [parameter for parameter in trained if not decays(*owners[parameter])]
        groups = [{"params": decayed, "weight_decay": settings.weight_decay}, {"params": spared, "weight_decay": 0.0}]
    if settings.classifier_factor != 1.0:
        groups = [part for group in groups for part in _classifier_apart(model, group, settings.classifier_factor)]
    groups = [group for group in groups if group["params"]]
    rate = settings.learning_rate
    # One kernel for all weights where there is one, rather than a few for each step of the formula.
    fused = all(parameter.is_cuda for parameter in trained) or None
    if settings.name == "sgd":
        return torch.optim.SGD(groups, rate, settings.momentum, nesterov=settings.nesterov, fused=fused)
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "radam": torch.optim.RAdam}
    options = {"betas": (settings.betas[0], settings.betas[1]), "eps": settings.eps, "weight_decay": 0.0}
    if settings.name != "radam":
        options["fused"] = fused
    return kinds[settings.name](groups, lr=rate, **options)  # type: ignore[arg-type]


NORMS = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.batchnorm._NormBase)


def decays(module: nn.Module, name: str) -> bool:
    """Whether weight decay acts on a module's parameter `name`.

    It does not on biases, on the scales of norms, on parameters of one axis or none, and on those that a module lists
    in its attribute `undecayed`. The number of axes alone does not tell: betas are [i,j], the bias of votes [i,j,a,o],
    and a decayed scale of a pose's LayerNorm [a,o] makes all coefficients equal.

    >>> import capsroute as cr
    >>> from capsroute.training.optimisers import decays
    >>> norm, layer = cr.layers.PoseLayerNorm(4, 4), cr.layers.CapsuleLinear(6, 3, 8, 16)
    >>> decays(norm, "weight"), decays(layer, "W")
    (False, True)
    """
    if isinstance(module, NORMS) or name.endswith("bias") or name in getattr(module, "undecayed", ()):
        return False
    return getattr(module, name).dim() > 1


def _classifier_apart(model: nn.Module, group: dict, factor: float) -> list[dict]:
    """A group of parameters as two: the classifier's, whose learning rate is `factor` times that of the others."""
    if not hasattr(model, "get_classifier"):
        raise ValueError("optimiser.classifier_factor: the model has no `get_classifier` that says what it is for")
    own = set(model.get_classifier().parameters())  # type: ignore[operator]
    rest = [parameter for parameter in group["params"] if parameter not in own]
    apart = [parameter for parameter in group["params"] if parameter in own]
    return [{**group, "params": rest}, {**group, "params": apart, "factor": factor}]


def learning_rate_factor(schedule: ScheduleSection, step: int, total_steps: int, epoch_steps: int) -> float:
    """What the learning rate is multiplied with at `step` (from 0) of `total_steps`.

    >>> from capsroute.training.optimisers import learning_rate_factor
    >>> from capsroute.training.sections import ScheduleSection
    >>> schedule = ScheduleSection(name="step", milestones=[150, 250])
    >>> [round(learning_rate_factor(schedule, epoch * 390, 350 * 390, 390), 4) for epoch in (0, 149, 150, 250)]
    [1.0, 1.0, 0.1, 0.01]
    """
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "exponential":
        return schedule.decay ** (step / epoch_steps)
    if schedule.name == "step":
        return schedule.factor ** sum(step >= milestone * epoch_steps for milestone in schedule.milestones)
    # From `start` up to 1 in the warm-up, then down to `end`: both cosine for one-cycle; linear up for warm-up.
    progress = step / max(1, total_steps - 1)
    if progress < schedule.warmup:
        part = progress / schedule.warmup
        risen = part if schedule.name == "warmup_cosine" else (1 - math.cos(math.pi * part)) / 2
        return schedule.start + (1 - schedule.start) * risen
    part = (progress - schedule.warmup) / max(1e-12, 1 - schedule.warmup)
    return schedule.end + (1 - schedule.end) * (1 + math.cos(math.pi * min(1.0, part))) / 2


Tensors = tuple[Tensor, ...] | list[Tensor]


def averaged(model: nn.Module, decay: float) -> AveragedModel:
    """A moving average of weights and running statistics: `update_parameters(model)` moves it, `.module` is the model.

    Early on the decay is smaller, (1 + n) / (10 + n) after n updates, so that the start is soon forgotten.

    >>> import torch
    >>> from capsroute.training.optimisers import averaged
    >>> model = torch.nn.Linear(1, 1)
    >>> average = averaged(model, decay=0.9)
    >>> average.update_parameters(model)
    >>> torch.equal(average.module.weight, model.weight)
    True
    """

    @torch.no_grad()
    def follow(own: Tensors, new: Tensors, _: Tensor | int) -> None:
        if own[0].is_floating_point():
            # The count is kept on the CPU: a GPU is not waited for.
            updates = int(average.n_averaged)
            torch._foreach_lerp_(own, new, 1 - min(decay, (1 + updates) / (10 + updates)))
        else:
            torch._foreach_copy_(own, new)  # counts are copied

    average = AveragedModel(model, multi_avg_fn=follow, use_buffers=True)
    average.module.requires_grad_(False)
    return average
