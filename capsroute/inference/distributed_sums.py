"""What accumulation over several processes needs of torch.distributed: one sum and one gathering of rows."""

from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist


def is_sharded() -> bool:
    """Whether other processes have their share of the data."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def sum_over_processes(tensors: list[Tensor]) -> list[Tensor]:
    """Tensors of one dtype summed over all processes in one all-reduce; as they are when there is one process."""
    if not is_sharded():
        return tensors
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    dist.all_reduce(flat)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for part, tensor in zip(parts, tensors)]


def gather_rows(rows: Tensor) -> Tensor:
    """The rows [n, ...] of all processes, n their own, one process after the other."""
    if not is_sharded():
        return rows
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, rows.cpu())  # `all_gather` wants as many rows everywhere
    return torch.cat(gathered).to(rows.device)


def process_rank() -> int:
    """The number of this process among those that share the data."""
    return dist.get_rank() if is_sharded() else 0
