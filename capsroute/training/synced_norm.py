"""Batch normalisation over the images of all processes, so that several train exactly what one would."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = ["SyncedBatchNorm2d", "sync_batch_norm"]


class _SumOverProcesses(torch.autograd.Function):
    """The sum of all processes' tensors; each one's gradient is the sum of all gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class SyncedBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm2d whose mean and variance are those of all processes' images together; works on the CPU too."""

    def forward(self, images: Tensor) -> Tensor:  # [b, c, h, w]
        if not self.training:
            return super().forward(images)
        values = images.float()
        count = values.new_tensor([values[:, 0].numel()])
        *sums, number = _SumOverProcesses.apply(torch.cat([values.sum((0, 2, 3)), count])).split([self.num_features, 1])
        mean = sums[0] / number
        centred = values - mean[:, None, None]
        variance = _SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / number
        self._follow(mean.detach(), variance.detach(), number.detach())
        scale = (variance + self.eps).rsqrt() * self.weight
        return torch.addcmul(self.bias[:, None, None], centred, scale[:, None, None]).to(images.dtype)

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
