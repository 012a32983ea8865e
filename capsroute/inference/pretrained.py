"""Master coefficients that come with trained weights of the package."""

from __future__ import annotations

from capsroute.inference.master import MasterCoefficients
from capsroute.models.pretrained import MASTER, find_pretrained

__all__ = ["pretrained_coefficients"]


def pretrained_coefficients(name: str, tag: bool | str = True) -> MasterCoefficients:
    """The master coefficients of a pretrained model: name and tag are those given to `cr.create_model`.

    >>> import torch, capsroute as cr
    >>> model = cr.create_model("capsnet_max_min", pretrained=True)
    >>> fast = cr.inference.with_coefficients(model, cr.inference.pretrained_coefficients("capsnet_max_min"))
    >>> fast(torch.rand(1, 1, 28, 28)).scores.shape
    torch.Size([1, 10])
    """
    weights = find_pretrained(name, tag)
    if weights is None or not weights.has_master:
        raise ValueError(f"name: no master coefficients come with the weights {tag!r} of {name!r}")
    return MasterCoefficients.load(weights.file(MASTER))
