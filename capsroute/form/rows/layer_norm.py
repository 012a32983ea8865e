"""LayerNorm of poses. Rows of sixteen numbers are short: torch's kernel gives each of a million rows its own block."""

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.form.autocast import autocast_is_on
from capsroute.form.operations import Operation

__all__ = ["layer_norm"]


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last axis, as `torch.nn.functional.layer_norm` has it, autocast included.

    x [..., n], weight and bias [n], both or none.

    >>> import torch
    >>> from capsroute.form.rows.layer_norm import layer_norm
    >>> layer_norm(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[-1.2247,  0.0000,  1.2247]])
    """
    autocast = autocast_is_on(x.device)
    found = LAYER_NORM.attempt("auto", x, weight, bias, eps, torch.float32 if autocast else x.dtype)
    if found is not None:
        return found
    if weight is not None and bias is not None and not autocast:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    # As rows: of a gradient that came permuted, compiling guesses other strides than LayerNorm's backward gives.
    return F.layer_norm(x.reshape(-1, x.shape[-1]), x.shape[-1:], weight, bias, eps).view(x.shape)


def _plain(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    weight, bias = (None if t is None else t.to(dtype) for t in (weight, bias))
    return F.layer_norm(x.to(dtype), x.shape[-1:], weight, bias, eps)


LAYER_NORM = Operation("layer_norm", _plain, tensors=3, falls_back=True)
