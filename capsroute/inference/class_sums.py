"""Container matrices: streaming sums of coefficients, one container a class (Zhao et al. 2019, section 5)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Containers", "ground_truth_columns", "sums_device"]


def sums_device(device: torch.device | str) -> torch.device:
    """Where float64 sums can be kept: Apple's GPUs have no float64, so for them on the CPU."""
    device = torch.device(device)
    return torch.device("cpu") if device.type == "mps" else device


class Containers:
    """Sums [groups, i, j] of coefficient matrices, in float64 so that 60,000 float32 matrices lose nothing.

    >>> import torch
    >>> from capsroute.inference.class_sums import Containers
    >>> containers = Containers(groups=2, children=3, parents=2)
    >>> containers.add(torch.ones(4, 3, 2), torch.tensor([0, 1, 1, 1]))
    >>> containers.sums[:, 0, 0].tolist()
    [1.0, 3.0]
    """

    def __init__(self, groups: int, children: int, parents: int, device: torch.device | str = "cpu"):
        self.sums = torch.zeros(groups, children, parents, dtype=torch.float64, device=sums_device(device))

    def add(self, coefficients: Tensor, groups: Tensor) -> None:
        """Matrices [b,i,j], or [b,h',w',i,j] averaged over positions, into the containers groups [b]."""
        coefficients = coefficients.to(self.sums.device)
        if coefficients.dim() == 5:
            coefficients = coefficients.mean((1, 2), dtype=torch.float64)
        self.sums.index_add_(0, groups.to(self.sums.device), coefficients.to(torch.float64))


def ground_truth_columns(containers: Tensor) -> Tensor:
    """Column j of container j as column j of one matrix: [j,i,j] -> [i,j].

    >>> import torch
    >>> from capsroute.inference.class_sums import ground_truth_columns
    >>> ground_truth_columns(torch.tensor([[[1, 2]], [[3, 4]]]))
    tensor([[1, 4]])
    """
    return containers.diagonal(dim1=0, dim2=2)
