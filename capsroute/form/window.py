"""The window that moves over a map: where each parent of a convolutional capsule layer takes its children from."""

from typing import NamedTuple

__all__ = ["WHOLE", "Window"]


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
