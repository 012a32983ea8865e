"""LayerNorm of poses. Rows of sixteen numbers are short: torch's kernel gives each of a million rows its own block."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.form.autocast import autocast_is_on
from capsroute.form.contractions.operators import is_transformed
from capsroute.form.dispatch import applies

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
    if _applies(x):
        return _LayerNorm.apply(x, weight, bias, eps, torch.float32 if autocast else x.dtype)
    if weight is not None and bias is not None and not autocast:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    # As rows: of a gradient that came permuted, compiling guesses other strides than LayerNorm's backward gives.
    return F.layer_norm(x.reshape(-1, x.shape[-1]), x.shape[-1:], weight, bias, eps).view(x.shape)


def _applies(x: Tensor) -> bool:
    """A compiler fuses LayerNorm with what is around it, which is better still."""
    if torch.compiler.is_compiling() or type(x) not in (Tensor, torch.nn.Parameter) or is_transformed(x):
        return False
    return applies("layer_norm", x)


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
        from capsroute.form.rows import kernels as rows

        ctx.eps, ctx.dtype = eps, dtype
        ctx.save_for_backward(x, weight, bias)
        return rows.layer_norm_forward(x.contiguous(), weight, bias, eps, dtype)

    @staticmethod
    def backward(ctx, g):
        from capsroute.form.rows import kernels as rows

        x, weight, bias = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *_plain_backward(g, x, weight, bias, ctx.eps, ctx.dtype), None, None
        return *rows.layer_norm_backward(g.contiguous(), x.contiguous(), weight, ctx.eps), None, None


def _plain_backward(g, x, weight, bias, eps, dtype):
    """The same gradients by torch's own, which are themselves differentiable."""
    given = x, weight, bias
    weight, bias = (None if t is None else t.to(dtype) for t in (weight, bias))
    y = F.layer_norm(x.to(dtype), x.shape[-1:], weight, bias, eps)
    wanted = [t for t in given if t is not None and t.requires_grad]
    found = iter(torch.autograd.grad(y, wanted, g, create_graph=True))
    return [next(found) if t is not None and t.requires_grad else None for t in given]
