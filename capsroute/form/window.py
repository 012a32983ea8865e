"""The window that moves over a map: where each parent of a convolutional capsule layer takes its children from."""

from typing import NamedTuple

from torch import Tensor
from torch.nn import functional as F


class Window(NamedTuple):
    """What a convolution or a pooling does to a side of its map."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def positions(self, *sides: int) -> tuple[int, ...]:
        """How many places the window has along each side.

        >>> from capsroute.form.window import Window
        >>> Window(3, stride=2).positions(16, 16)
        (7, 7)
        """
        return tuple((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in sides)


# A list of capsules [b,i,a,k] is a map [b,i,a,k,1,1] that the window covers whole.
WHOLE = Window(1)


def patches(maps: Tensor, window: Window, shape: tuple[int, ...], padding_value: float = 0.0) -> Tensor:
    """Maps [b,c,h,w], channels c = (n, ...) of this shape -> what the window sees of them [b * L, n * kernel^2, ...].

    >>> import torch
    >>> from capsroute.form.window import Window, patches
    >>> patches(torch.randn(2, 12, 5, 5), Window(3), (3, 4)).shape
    torch.Size([18, 27, 4])
    """
    if window.padding:
        maps = F.pad(maps, [window.padding] * 4, value=padding_value)
    found = F.unfold(maps, window.kernel, stride=window.stride)  # [b, c * K, L]
    found = found.unflatten(1, (*shape, window.kernel**2))  # [b, n, ..., K, L]
    return found.movedim((-1, -2), (1, 3)).flatten(2, 3).flatten(0, 1)  # [b * L, n * K, ...]


def cut(map: Tensor, window: Window) -> Tensor:
    """The children that the window sees of a map [b,n,a,k,h,w]: [b * L, n * kernel^2, a, k]."""
    return patches(map.flatten(1, 3), window, map.shape[1:4])
