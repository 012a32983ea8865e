"""Batch normalisation over the images of all processes, so that several train exactly what one would."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.nn.functional
from torch import Tensor, nn

__all__ = ["SyncedBatchNorm2d", "sync_batch_norm"]


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose mean and variance are those of all processes' images together; works on the CPU too."""

    def forward(self, images: Tensor) -> Tensor:  # [b, c, h, w]
        if not self.training:
            return super().forward(images)
        statistics = images.float()
        count = statistics.new_tensor([statistics[:, 0].numel()])
        mine = torch.cat([statistics.sum((0, 2, 3)), statistics.square().sum((0, 2, 3)), count])
        # Differentiable: each process's gradient reaches the others' images through the shared statistics.
        sums, squares, number = dist.nn.functional.all_reduce(mine).split([self.num_features, self.num_features, 1])
        mean = sums / number
        variance = squares / number - mean.square()
        self._follow(mean.detach(), variance.detach(), number.detach())
        scale = (variance + self.eps).rsqrt() * self.weight
        shift = self.bias - mean * scale
        return torch.addcmul(shift[:, None, None], statistics, scale[:, None, None]).to(images.dtype)

    @torch.no_grad()
    def _follow(self, mean: Tensor, variance: Tensor, number: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        momentum = 0.1 if self.momentum is None else self.momentum
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean, momentum)
        self.running_var.lerp_(variance * number / (number - 1), momentum)


def sync_batch_norm(model: nn.Module, device: torch.device) -> None:
    """Turn every BatchNorm2d of `model` into one over all processes, keeping its parameters and its name."""
    for module in model.modules():
        for name, child in list(module.named_children()):
            if type(child) is nn.BatchNorm2d and child.affine and child.track_running_stats:
                setattr(module, name, _synced(child, device))


def _synced(norm: nn.BatchNorm2d, device: torch.device) -> nn.Module:
    if device.type == "cuda":
        # torch's own has fused kernels, and refuses the CPU.
        return nn.SyncBatchNorm.convert_sync_batchnorm(norm)
    synced = SyncedBatchNorm2d(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    synced.weight, synced.bias = norm.weight, norm.bias
    synced.running_mean, synced.running_var = norm.running_mean, norm.running_var
    synced.num_batches_tracked = norm.num_batches_tracked
    return synced.train(norm.training)
