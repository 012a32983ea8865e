"""What each slot draws."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch import Tensor

from capsroute.analysis.draw.style import drawing
from capsroute.models.slots import SlotAutoencoder

__all__ = ["draw_slots"]


@drawing
def draw_slots(model: SlotAutoencoder, images: Tensor, slots: int | None = None) -> Figure:
    """A row for each of the images [b,c,h,w]: the image, its reconstruction, then what each slot draws, where it does.

    >>> import torch, capsroute as cr
    >>> model = cr.models.SlotAutoencoder(image_size=14, slots=4, channels=8, features=8, hidden=8)
    >>> len(cr.analysis.draw_slots(model, torch.rand(2, 3, 14, 14)).axes)
    12
    """
    with torch.no_grad():
        output = model(images, slots=slots)
    drawn = output.colours * output.masks.unsqueeze(2)  # [b, j, c, h, w]
    number = drawn.shape[1]
    titles = ["image", "reconstruction", *(f"slot {slot}" for slot in range(number))]
    figure = Figure(figsize=(0.9 * (number + 2), 0.95 * len(images) + 0.3), layout="constrained")
    axes = figure.subplots(len(images), number + 2, squeeze=False)
    for row, line in enumerate(axes):
        pictures = [images[row], output.reconstruction[row], *drawn[row]]
        for title, axis, picture in zip(titles, line, pictures):
            axis.imshow(_as_colours(picture))
            axis.set_axis_off()
            if row == 0:
                axis.set_title(title)
    return figure


def _as_colours(picture: Tensor):
    picture = picture.detach().float().cpu().clamp(0, 1)
    return (picture.expand(3, -1, -1) if picture.shape[0] == 1 else picture[:3]).permute(1, 2, 0).numpy()
