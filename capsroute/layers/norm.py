"""LayerNorm over the whole pose, with a learned scale and shift as in the code that Tsai et al. 2020 released."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from capsroute.form.rows.layer_norm import layer_norm

__all__ = ["PoseLayerNorm"]


class PoseLayerNorm(nn.Module):
    """LayerNorm over rows and columns of poses [..., a, o] together, eps 1e-5, then a learned scale and shift [a, o].

    >>> import torch, capsroute as cr
    >>> cr.layers.PoseLayerNorm(4, 4)(torch.randn(2, 10, 4, 4)).shape
    torch.Size([2, 10, 4, 4])
    """

    undecayed = ("weight", "bias")  # of weight decay: a scale that shrinks switches routing off

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, poses: Tensor) -> Tensor:
        # One flat axis: with two, torch 2.11 gives the weight's gradient the wrong shape on CUDA.
        flat = layer_norm(poses.flatten(-2), self.weight.flatten(), self.bias.flatten())
        return flat.unflatten(-1, self.weight.shape)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
