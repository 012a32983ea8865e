"""Whether autocast is on for a device, also for devices that know none."""

import torch

__all__ = ["autocast_is_on"]


def autocast_is_on(device: torch.device) -> bool:
    """torch itself raises for the meta device, where shapes are tried out without numbers."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)
