"""Folding: a routed layer with given coefficients is one linear layer, or one convolution, and an activation.

sum_i C_ij W_ij u_i = reshape(u) @ reshape(C W)        (Zhao et al. 2019, section 3, as one matrix product)
"""

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.inference.coefficients import Coefficients, M, with_coefficients
from capsroute.layers import CapsuleConv2d, CapsuleLinear, CapsuleStack, RoutedLayer, flatten_positions
from capsroute.layers.pose import activated
from capsroute.routing import Routed, pose_layer_norm


def fold(model: M, coefficients: Coefficients | None = None) -> M:
    """A copy of a model in which routed layers with given coefficients are plain linear layers or convolutions.

    The copy computes what `with_coefficients(model, coefficients)` computes, up to rounding. coefficients=None: the
    model has them already (it comes from `with_coefficients`, or learned them).

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_small", image_size=8)
    >>> fast, folded = cr.inference.with_coefficients(model, "uniform"), cr.inference.fold(model, "uniform")
    >>> images = torch.rand(2, 1, 8, 8)
    >>> torch.allclose(fast(images).scores, folded(images).scores, atol=1e-6)
    True
    """
    folded = with_coefficients(model, {} if coefficients is None else coefficients)
    routed = {name: layer for name, layer in folded.named_modules() if isinstance(layer, RoutedLayer)}
    fast = {name: layer for name, layer in routed.items() if layer.routing.given_coefficients() is not None}
    if not fast:
        raise ValueError("model: expected a routed layer with given coefficients, found none; give `coefficients`")
    for name, layer in fast.items():
        folded.set_submodule(name, _folded_layer(name, layer))
    for module in folded.modules():
        if isinstance(module, CapsuleStack) and not any(isinstance(layer, RoutedLayer) for layer in module.layers):
            module.schedule = "sequential"  # without agreement one pass is final: steps would repeat it
    return folded


def folded_layers(model: nn.Module) -> list[str]:
    """Names of the layers that `fold` replaced."""
    return [name for name, layer in model.named_modules() if isinstance(layer, _Folded)]


def _folded_layer(name: str, layer: nn.Module) -> nn.Module:
    if isinstance(layer, CapsuleConv2d):
        return FoldedCapsuleConv2d(layer)
    if isinstance(layer, CapsuleLinear):
        return FoldedCapsuleLinear(layer)
    raise ValueError(f"model: cannot fold layer {name!r}: expected CapsuleLinear or CapsuleConv2d, got {type(layer)}")


class _Folded(nn.Module):
    """What both have: a weight, parents, an activation, and no coefficients to show."""

    weight: nn.Parameter

    def __init__(self, layer: RoutedLayer, parents: int, columns: int):
        super().__init__()
        self.input, router = layer.input, layer.routing
        self.parents, self.columns, self.activation = parents, columns, router.activation
        affine = self.activation == "affine_layer_norm"
        self.layer_norm = copy.deepcopy(router.layer_norm) if affine else pose_layer_norm

    def activate(self, poses: Tensor) -> Tensor:  # [..., a, o]
        return activated(poses, self.activation, self.layer_norm)  # type: ignore[arg-type]

    def forward(self, poses: Tensor, scores: Tensor | None = None, return_coefficients: bool = False) -> Routed:
        if return_coefficients:
            raise ValueError("return_coefficients: a folded layer has none; ask the model that it was folded from")
        leading = self.input.leading(poses)
        if leading is not None:
            return leading.unfold(self.forward(leading.fold(poses)))
        return Routed(self.fold(self.input.read(poses, self.weight)), None, None, None)

    def fold(self, poses: Tensor) -> Tensor:
        """The parents of children with one axis in front."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"weight={tuple(self.weight.shape)}, activation={self.activation!r}"


class FoldedCapsuleLinear(_Folded):
    """Fully connected capsules as one matrix product: poses [b,i,a,k] or a map [b,n,a,k,h,w] -> Routed [b,j,a,o]."""

    def __init__(self, layer: CapsuleLinear):
        C, W = _operands(layer)
        super().__init__(layer, layer.num_parents, layer.out_columns)
        self.weight = nn.Parameter(torch.einsum("ij,ijko->joik", C, W).flatten(2).flatten(0, 1))  # [j*o, i*k]
        bias = None if layer.bias is None else torch.einsum("ij,ijao->jao", C, layer.bias.detach())
        self.bias = None if bias is None else nn.Parameter(bias)

    def fold(self, poses: Tensor) -> Tensor:
        children = flatten_positions(poses).poses if poses.dim() == 6 else poses
        parents = self._vectors(children) if children.shape[2] == 1 else self._matrices(children)
        return self.activate(parents if self.bias is None else parents + self.bias)

    def _vectors(self, poses: Tensor) -> Tensor:
        """Poses of one row lie in memory as the product needs them: every view that is saved is host time saved."""
        return F.linear(poses.flatten(1), self.weight).view(-1, self.parents, 1, self.columns)

    def _matrices(self, poses: Tensor) -> Tensor:
        rows = poses.transpose(1, 2).flatten(2)  # [b, a, i*k]
        return F.linear(rows, self.weight).unflatten(2, (self.parents, self.columns)).transpose(1, 2)


class FoldedCapsuleConv2d(_Folded):
    """Convolutional capsules as one convolution: poses [b,n,a,k,h,w] -> Routed with poses [b,m,a,o,h',w']."""

    def __init__(self, layer: CapsuleConv2d):
        C, W = _operands(layer)
        super().__init__(layer, layer.out_capsules, layer.out_columns)
        self.stride, self.padding = layer.stride, layer.padding
        weight = torch.einsum("ij,ijko->joki", C, W)  # i = (capsule, kernel row, kernel column)
        weight = weight.unflatten(3, (layer.in_capsules, layer.kernel_size, layer.kernel_size))
        weight = weight.permute(0, 1, 3, 2, 4, 5).flatten(2, 3).flatten(0, 1)
        self.weight = nn.Parameter(weight.contiguous())  # [m*o, n*k, kernel, kernel]

    def fold(self, poses: Tensor) -> Tensor:
        batch, rows = poses.shape[0], poses.shape[2]
        maps = poses.transpose(1, 2).flatten(0, 1).flatten(1, 2)  # [b*a, n*k, h, w]
        maps = F.conv2d(maps, self.weight, stride=self.stride, padding=self.padding)
        maps = maps.unflatten(1, (self.parents, self.columns)).unflatten(0, (batch, rows))  # [b, a, m, o, h', w']
        return self.activate(maps.permute(0, 4, 5, 2, 1, 3)).permute(0, 3, 4, 5, 1, 2)


def _operands(layer: RoutedLayer) -> tuple[Tensor, Tensor]:
    C, W = layer.routing.given_coefficients(), layer.W.detach()
    assert C is not None
    return C.detach().to(W.dtype), W
