"""Small versions of registered models, and inputs that fit them."""

import pytest
import torch

import capsroute as cr

NAMES = cr.list_models()
IMAGES = [name for name in NAMES if None not in cr.models.summarise(name, **cr.models.small_options(name)).input_shape]
# One network of each routing; what is dear and looks alike in all networks of a routing is tried on these.
ROUTINGS = {
    "capsnet_small",
    "capsnet_max_min",
    "efficient_capsnet_mnist",
    "heinsen_smallnorb",
    "self_routing_resnet20_two",
    "tsai_em_simple",
    "tsai_simple_cifar10",
    "vb_capsnet",
    "vector_routing_head",
    "zhao_huang_resnet20",
}
ONE_EACH = [name if name in ROUTINGS else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


def small(name: str, **overrides):
    """The small version of a model, the same every time."""
    torch.manual_seed(0)
    return cr.create_model(name, **{**cr.models.small_options(name), **overrides})


def inputs(model, batch: int = 3, seed: int = 0) -> torch.Tensor:
    """Random inputs in [0, 1]; five wherever any number goes."""
    shape = [5 if side is None else side for side in model.input_shape]
    return torch.rand(batch, *shape, generator=torch.Generator().manual_seed(seed))


def settled(model):
    """The model in evaluation mode, its batch statistics and betas no longer those of a fresh one."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "beta" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        model.train()
        model(inputs(model, batch=8, seed=2))
    return model.eval()
