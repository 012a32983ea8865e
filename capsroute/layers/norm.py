"""LayerNorm over the whole pose, with a learned scale and shift as in the released code of 001."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["PoseLayerNorm"]


class PoseLayerNorm(nn.Module):
    """LayerNorm over rows and columns of poses [..., a, o] together, eps 1e-5, then a learned scale and shift [a, o].

    >>> import torch, capsroute as cr
    >>> cr.layers.PoseLayerNorm(4, 4)(torch.randn(2, 10, 4, 4)).shape
    torch.Size([2, 10, 4, 4])
    """

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, poses: Tensor) -> Tensor:
        weight, bias = self.weight.to(poses.dtype), self.bias.to(poses.dtype)
        # One flat axis: with two, torch 2.11 gives the weight's gradient the wrong shape on CUDA.
        flat = F.layer_norm(poses.flatten(-2), (weight.numel(),), weight.flatten(), bias.flatten(), eps=1e-5)
        return flat.unflatten(-1, weight.shape)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
