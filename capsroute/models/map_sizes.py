"""How convolutions shrink a map, forwards and backwards: the map an image becomes, and the smallest image that fits."""

from __future__ import annotations

from collections.abc import Sequence

from capsroute.form.window import Window


def map_size(image_size: tuple[int, int], windows: Sequence[Window], least: int = 1) -> tuple[int, int]:
    """Height and width after these windows; a ValueError that says the smallest image when it is less than `least`.

    >>> from capsroute.models.map_sizes import Window, map_size
    >>> map_size((28, 28), [Window(9), Window(9, stride=2)])
    (6, 6)
    """
    smallest = smallest_side(windows, least)
    if min(image_size) < smallest:
        raise ValueError(
            f"image_size: expected at least {smallest} x {smallest} for these kernels, "
            f"got {image_size[0]} x {image_size[1]}"
        )
    sides: tuple[int, ...] = image_size
    for window in windows:
        sides = window.positions(*sides)
    return sides[0], sides[1]


def smallest_side(windows: Sequence[Window], least: int = 1) -> int:
    """The smallest side of an image that these windows leave `least` positions of.

    >>> from capsroute.models.map_sizes import Window, smallest_side
    >>> smallest_side([Window(9), Window(9, stride=2)])
    17
    """
    side = least
    for window in reversed(windows):
        side = max(1, (side - 1) * window.stride + window.kernel - 2 * window.padding)
    return side
