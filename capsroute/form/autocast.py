"""Whether autocast is on for a device, also for devices that know none; and what is computed outside of it."""

import functools
from collections.abc import Callable
from typing import Any

import torch


def autocast_is_on(device: torch.device) -> bool:
    """torch itself raises for the meta device, where shapes are tried out without numbers."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def outside_autocast(method: Callable) -> Callable:
    """A method of an object with a `device` whose sums autocast would make in half precision."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not autocast_is_on(self.device):
            return method(self, *args, **kwargs)
        with torch.autocast(self.device.type, enabled=False):
            return method(self, *args, **kwargs)

    return called
