"""Routing as a drop-in for global pooling (Zhao & Huang 2019, section 3.4)."""

import math

from torch import Tensor, nn

from capsroute.form import check_backend
from capsroute.layers.dot_routers import PoolingRouter
from capsroute.naming import check_one_of
from capsroute.routing.checks import check_at_least
from capsroute.votes import IdentityVotes

GROUPINGS = ("channels", "spatial")


class RoutingPool2d(nn.Module):
    """Pool feature maps [...,c,h,w] to [...,c,1,1], each position weighted by its agreement with the others.

    `grouping="channels"`: a capsule is `capsule_size` consecutive channels at one position, and each group of
    channels is pooled over positions on its own. `grouping="spatial"`: a capsule is a `capsule_size` x `capsule_size`
    patch of one channel; the pooled patch is averaged. With `sharpness=0` both are exactly `nn.AdaptiveAvgPool2d(1)`.
    `stop_gradient=True` lets no gradient through the weights.
    `return_coefficients=True` also gives the coupling map: [b, c/capsule_size, h, w], or [b, c, h/size, w/size].

    >>> import torch, capsroute as cr
    >>> pool = cr.layers.RoutingPool2d(capsule_size=16, sharpness=0.5)
    >>> pooled, coupling = pool(torch.randn(2, 64, 8, 8), return_coefficients=True)
    >>> pooled.shape, coupling.shape
    (torch.Size([2, 64, 1, 1]), torch.Size([2, 4, 8, 8]))
    """

    def __init__(
        self,
        capsule_size: int = 16,
        sharpness: float = 1.0,
        iterations: int = 1,
        grouping: str = "channels",
        backend: str = "auto",
        stop_gradient: bool = False,
    ):
        super().__init__()
        check_one_of("grouping", grouping, GROUPINGS)
        check_at_least("capsule_size", capsule_size, 1)
        self.capsule_size, self.grouping, self.backend = capsule_size, grouping, check_backend(backend)
        self.routing = PoolingRouter(iterations, sharpness, stop_gradient=stop_gradient)

    def forward(self, features: Tensor, return_coefficients: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        if features.dim() < 3:
            raise ValueError(f"features: expected [...,c,h,w], got {tuple(features.shape)}")
        if features.dim() != 4:
            leading = features.shape[:-3]
            folded = features.reshape(math.prod(leading), *features.shape[-3:])
            given = self.forward(folded, return_coefficients)
            if isinstance(given, Tensor):
                return given.reshape(*leading, *given.shape[1:])
            return given[0].reshape(*leading, *given[0].shape[1:]), given[1].reshape(*leading, *given[1].shape[1:])
        capsules, map_shape = self._channels(features) if self.grouping == "channels" else self._patches(features)
        batch, groups = capsules.shape[:2]
        routed = self.routing(IdentityVotes(capsules.flatten(0, 1), backend=self.backend))  # poses [b*g, 1, 1, d]
        poses = routed.poses.to(features.dtype).view(batch, groups, capsules.shape[3])
        pooled = poses.flatten(1) if self.grouping == "channels" else poses.mean(2)
        pooled = pooled[:, :, None, None]
        if not return_coefficients:
            return pooled
        assert routed.coefficients is not None
        return pooled, routed.coefficients.view(batch, groups, *map_shape)

    def _channels(self, features: Tensor) -> tuple[Tensor, tuple[int, int]]:
        channels, size = features.shape[1], self.capsule_size
        if channels % size:
            raise ValueError(f"features: expected channels divisible by capsule_size={size}, got {channels}")
        capsules = features.unflatten(1, (channels // size, size)).flatten(3).mT  # [b, g, h*w, d]
        return capsules, (features.shape[2], features.shape[3])

    def _patches(self, features: Tensor) -> tuple[Tensor, tuple[int, int]]:
        size, (height, width) = self.capsule_size, features.shape[2:]
        if height % size or width % size:
            raise ValueError(f"features: expected height and width divisible by {size}, got {height} x {width}")
        rows, columns = height // size, width // size
        # Not pixel_unshuffle, whose gradient torch cannot give for an empty batch.
        patches = features.unflatten(3, (columns, size)).unflatten(2, (rows, size)).transpose(3, 4)
        return patches.flatten(4).flatten(2, 3), (rows, columns)  # [b, c, h'*w', size*size]

    def extra_repr(self) -> str:
        return f"capsule_size={self.capsule_size}, grouping={self.grouping!r}"


def replace_pooling(model: nn.Module, capsule_size: int = 16, sharpness: float = 1.0, iterations: int = 1) -> nn.Module:
    """Turn every global average pooling (`nn.AdaptiveAvgPool2d(1)`) of a CNN into routing pooling, in place.

    >>> import torch, capsroute as cr
    >>> cnn = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten())
    >>> cr.layers.replace_pooling(cnn)(torch.randn(2, 3, 8, 8)).shape
    torch.Size([2, 32])
    """
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent._modules.items()  # `named_children` gives one of two names of the same module
        if isinstance(child, nn.AdaptiveAvgPool2d) and child.output_size in (1, (1, 1), [1, 1])
    ]
    if not found:
        raise ValueError("model: expected at least one nn.AdaptiveAvgPool2d(1), found none")
    for parent, name in found:
        pool = RoutingPool2d(capsule_size, sharpness, iterations)
        setattr(parent, name, pool.train(getattr(parent, name).training))
    return model
