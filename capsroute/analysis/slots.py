"""Slots: how well their masks fit the true ones (adjusted Rand index, Hubert & Arabie 1985), and what each draws."""

import torch
from torch import Tensor

from capsroute.analysis.style import Figure, drawing, grid, picture, show
from capsroute.models.slots import SlotAutoencoder


def ari(true: Tensor, found: Tensor, ignore: int | None = None) -> Tensor:
    """The adjusted Rand index of each sample: whole numbers [b,...] and [b,...] -> float64 [b].

    1 is the same division under any names, 0 what chance would give. `ignore` leaves out the places where `true` has
    this number: with `ignore=0` and masks whose ground is 0 this is the foreground ARI that papers on slots report. A
    sample with nothing to divide, or one part in both divisions, counts as 1, as in scikit-learn.

    >>> import torch, capsroute as cr
    >>> true = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]])
    >>> cr.analysis.ari(true, torch.tensor([[5, 5, 2, 2], [5, 2, 5, 2]]))
    tensor([ 1.0000, -0.5000], dtype=torch.float64)
    """
    for name, values in (("true", true), ("found", found)):
        if values.is_floating_point() or values.dim() < 2:
            raise ValueError(f"{name}: expected whole numbers [b,...], got {values.dtype} {list(values.shape)}")
    if true.shape != found.shape:
        raise ValueError(f"found: expected shape {list(true.shape)} as true has, got {list(found.shape)}")
    counted = torch.ones_like(true, dtype=torch.bool) if ignore is None else true != ignore
    counted = counted.flatten(1).to(torch.float64)
    rows, columns = (_one_hot(values.flatten(1)) for values in (true, found))
    table = torch.einsum("bn,bnr,bnc->brc", counted, rows, columns)  # [b, r, c]
    together = _pairs(table).sum((1, 2))
    in_true, in_found = _pairs(table.sum(2)).sum(1), _pairs(table.sum(1)).sum(1)
    total = _pairs(table.sum((1, 2)))
    by_chance = in_true * in_found / total.clamp_min(1)
    most = (in_true + in_found) / 2
    trivial = most == by_chance
    return torch.where(trivial, 1.0, (together - by_chance) / torch.where(trivial, 1.0, most - by_chance))


def _one_hot(values: Tensor) -> Tensor:
    names, index = values.unique(return_inverse=True)
    return torch.nn.functional.one_hot(index, max(1, len(names))).to(torch.float64)


def _pairs(counts: Tensor) -> Tensor:
    return counts * (counts - 1) / 2


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
    figure = picture(0.9 * (number + 2), 0.95 * len(images) + 0.3)
    axes = grid(figure, len(images), number + 2)
    for row, line in enumerate(axes):
        for axis, shown in zip(line, [images[row], output.reconstruction[row], *drawn[row]]):
            show(axis, shown.detach())
    for axis, title in zip(axes[0], ["image", "reconstruction", *(f"slot {slot}" for slot in range(number))]):
        axis.set_title(title)
    return figure
