"""LayerNorm of poses. Rows of sixteen numbers are short: torch's kernel gives each of a million rows its own block."""

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.form.dispatch import autocast_is_on
from capsroute.form.operations import Operation


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, axes: int = 1, eps: float = 1e-5
) -> Tensor:
    """LayerNorm over the last axes, so many, as `torch.nn.functional.layer_norm` has it, autocast included.

    weight and bias have the shape of those axes; both or none are given.

    >>> import torch
    >>> from capsroute.form.rows.layer_norm import layer_norm
    >>> layer_norm(torch.tensor([[1.0, 2.0, 3.0]]))
    tensor([[-1.2247,  0.0000,  1.2247]])
    """
    autocast = autocast_is_on(x.device)
    if axes > 1 and not x.is_contiguous():  # as rows: what is copied for them is what is kept for the gradient
        x = x.flatten(-axes).unflatten(-1, x.shape[-axes:])
    found = LAYER_NORM.attempt("auto", x, weight, bias, axes, eps, torch.float32 if autocast else x.dtype)
    if found is not None:
        return found
    if weight is not None and bias is not None and not autocast:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return _of_rows(x, weight, bias, axes, eps)


def _of_rows(x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, eps: float) -> Tensor:
    """One flat axis: with two, torch 2.11 gives the weight's gradient the wrong shape on CUDA. And rows: of a gradient
    that came permuted, compiling guesses other strides than LayerNorm's backward gives."""
    weight, bias = (None if t is None else t.flatten() for t in (weight, bias))
    row = x.shape[-axes:].numel()
    return F.layer_norm(x.reshape(-1, row), (row,), weight, bias, eps).view(x.shape)


def _plain(x: Tensor, weight: Tensor | None, bias: Tensor | None, axes: int, eps: float, dtype: torch.dtype) -> Tensor:
    weight, bias = (None if t is None else t.to(dtype) for t in (weight, bias))
    return _of_rows(x.to(dtype), weight, bias, axes, eps)


LAYER_NORM = Operation("layer_norm", _plain, tensors=3, asks=(0, 3), falls_back=True)
