"""Layers in float64 with every parameter drawn afresh, so that no beta hides behind its initial zero."""

import torch
from torch import nn

from capsroute.layers import list_routings

ROUTINGS = list_routings()


def filled(module: nn.Module, seed: int = 0, scale: float = 0.5) -> nn.Module:
    """The module in float64, its parameters (and a FastRouter's coefficients) random."""
    generator = torch.Generator().manual_seed(seed)
    module.double()
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point() and "running" not in name:
            tensor.copy_(scale * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return module


def numbers(*shape: int, seed: int = 1) -> torch.Tensor:
    """Random normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def indices(*shape: int) -> torch.Tensor:
    """A tensor whose every entry is different and says where it stands."""
    count = torch.tensor(shape).prod()
    return torch.arange(int(count), dtype=torch.float64).view(shape)


def scores_for(layer, *shape: int, seed: int = 2) -> torch.Tensor | None:
    """Scores of the kind that the layer's routing takes."""
    kind = layer.routing.score_kind
    if kind is None:
        return None
    logits = numbers(*shape, seed=seed)
    return logits if kind == "logit" else logits.sigmoid()
