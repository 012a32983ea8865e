"""Vector routing (Heinsen 2022, algorithm 1 in its efficient form): a sequence of vectors routed to vectors.

With n children x_i, xs_i = x_i / sqrt(n), f the logistic function and LN a layer norm without affine map:

    a_i   <- xs_i . W_A_i + B_A_i
    t times:
      R_ij   <- 1 / parents at first, then softmax over parents of log f(W_S_ij (x_i . pred_j) + B_S_ij)
                pred_j = (LN(y_j) W_G1) * W_G2_j + B_G2_j
      phi_ij <- beta_use_ij f(a_i) R_ij - beta_ign_ij (f(a_i) - f(a_i) R_ij)
      y_j    <- [(sum_i phi_ij xs_i) * W_F1_j] W_F2 + (sum_i phi_ij) B_F2_j
    return LN(y_j)

Votes are never made: their weighted sum needs only sum_i phi_ij xs_i. Neither are credits phi [b,i,j] of long inputs:
a few children at a time give their part of the two sums, and are looked at again on the way back.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from capsroute.form import statistics_dtype
from capsroute.form.dispatch import autocast_is_on
from capsroute.form.operations import is_transformed
from capsroute.layers.pose import check_like
from capsroute.layers.vector_sums import LongGradients, LongSums, gated, linear_credits, shares
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least, check_probabilities

# Credits of one call up to this many numbers are stored; of more, this many at a time are made, and made again on the
# way back.
PIECE = 1 << 23


class _Children(NamedTuple):
    """Some of the children, with what belongs to them alone."""

    x: Tensor  # [b, c, d]
    W_A: Tensor  # [c or 1, d]
    B_A: Tensor  # [c or 1]
    W_S: Tensor  # [c or 1, j]
    B_S: Tensor  # [c or 1, j]
    beta_use: Tensor | None  # [c, j], None where it is computed
    beta_ign: Tensor | None
    ignored: Tensor | None  # [1 or b, c, j], true: this child is not for this parent
    weight: Tensor | None  # [b, c, 1], how much of a child is there
    scale: Tensor  # [b, 1], 1 / sqrt(n)


class VectorRouting(nn.Module):
    """Vectors [b,i,in_features] -> Routed with poses [b,j,1,out_features]; coefficients are credits phi [b,i,j].

    `children=None` takes any number: one row of W_A and W_S serves all, and betas are linear in the child. `mask` is
    true where a child is *ignored* by a parent, [i,j] or [b,i,j]; `padding` [b,i] is true where a child is there
    (a number between 0 and 1 weighs it): children that are not count neither in sums nor in n. `normalise` is the layer
    norm of the result, which vectors of one number do without. Parameters have the paper's names, so that published
    heads load by name.

    >>> import torch, capsroute as cr
    >>> layer = cr.layers.VectorRouting(None, 5, in_features=16, out_features=8)
    >>> layer(torch.randn(2, 100, 16)).poses.shape
    torch.Size([2, 5, 1, 8])
    """

    # Benefits, costs and biases have no reason to be small: weight decay spares them.
    undecayed = ("B_A", "B_F2", "B_G2", "B_S", "beta_use", "beta_ign")

    def __init__(
        self,
        children: int | None,
        parents: int,
        in_features: int,
        out_features: int,
        iterations: int = 2,
        normalise: bool = True,
    ):
        super().__init__()
        if children is not None:
            check_at_least("children", children, 1)
        for name, value in (
            ("parents", parents),
            ("in_features", in_features),
            ("out_features", out_features),
            ("iterations", iterations),
        ):
            check_at_least(name, value, 1)
        self.num_children, self.num_parents, self.iterations, self.normalise = children, parents, iterations, normalise
        self.in_features, self.out_features = d, h = in_features, out_features
        rows = children or 1
        self.W_A, self.B_A = nn.Parameter(torch.empty(rows, d)), nn.Parameter(torch.empty(rows))
        self.W_F1, self.W_F2 = nn.Parameter(torch.empty(parents, d)), nn.Parameter(torch.empty(d, h))
        self.B_F2 = nn.Parameter(torch.empty(parents, h))
        self.W_G1, self.W_G2 = nn.Parameter(torch.empty(h, d)), nn.Parameter(torch.empty(parents, d))
        self.B_G2 = nn.Parameter(torch.empty(parents, d))
        self.W_S, self.B_S = nn.Parameter(torch.empty(rows, parents)), nn.Parameter(torch.empty(rows, parents))
        if children is None:
            self.compute_beta_use, self.compute_beta_ign = nn.Linear(d, parents), nn.Linear(d, parents)
        else:
            self.beta_use = nn.Parameter(torch.empty(children, parents))
            self.beta_ign = nn.Parameter(torch.empty(children, parents))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Fresh parameters with the paper's deviations; biases zero."""
        d, h = self.in_features, self.out_features
        for tensor, deviation in (
            (self.W_A, 2 / math.sqrt(d)),
            (self.W_F1, 1.0),
            (self.W_F2, 2 / math.sqrt(d)),
            (self.W_G1, 1 / math.sqrt(h)),
            (self.W_G2, 1.0),
            (self.W_S, 1 / math.sqrt(d)),
        ):
            nn.init.normal_(tensor, std=deviation)
        for bias in (self.B_A, self.B_F2, self.B_G2, self.B_S):
            nn.init.zeros_(bias)
        if self.num_children is None:
            self.compute_beta_use.reset_parameters()
            self.compute_beta_ign.reset_parameters()
        else:
            nn.init.normal_(self.beta_use)
            nn.init.normal_(self.beta_ign)

    def forward(
        self,
        inputs: Tensor,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
        return_coefficients: bool = False,
    ) -> Routed:
        """Route. Long inputs store nothing of size children x parents unless coefficients are asked for."""
        children = self._children(inputs, mask, padding)
        sums = self._many(children) if self._is_long(children) else self._part
        predicted = None
        found = self._mix(*sums(children, predicted))
        for _ in range(1, self.iterations):
            predicted = self._predict(found)
            found = self._mix(*sums(children, predicted))
        # Of the sums that made the result, so from the prediction before it.
        credits = self._credits(children, predicted).expand(inputs.shape[0], -1, -1) if return_coefficients else None
        if self.normalise and self.out_features > 1:
            found = _layer_norm(found)
        return Routed(found.unsqueeze(2), credits, None, None)

    # The children

    def _children(self, inputs: Tensor, mask: Tensor | None, padding: Tensor | None) -> _Children:
        if inputs.dim() != 3 or inputs.shape[2] != self.in_features:
            raise ValueError(f"inputs: expected [b,i,{self.in_features}], got {list(inputs.shape)}")
        check_like("inputs", inputs, self.W_A)
        batch, count = inputs.shape[:2]
        if self.num_children is not None and count != self.num_children:
            raise ValueError(f"inputs: expected {self.num_children} children, got {count}")
        ignored = weight = None
        if mask is not None:
            shapes = ((count, self.num_parents), (batch, count, self.num_parents))
            if mask.dtype != torch.bool or tuple(mask.shape) not in shapes:
                raise ValueError(
                    f"mask: expected bool {shapes[0]} [i,j] or {shapes[1]} [b,i,j], true where a child is ignored, "
                    f"got {mask.dtype} {tuple(mask.shape)}"
                )
            ignored = mask if mask.dim() == 3 else mask.unsqueeze(0)
        wide = statistics_dtype(inputs)  # of 65505 children there are infinitely many in float16
        n = torch.full((1, 1), max(1, count), dtype=wide, device=inputs.device)
        if padding is not None:
            if tuple(padding.shape) != (batch, count):
                raise ValueError(f"padding: expected [b,i] = {[batch, count]}, got {list(padding.shape)}")
            check_probabilities("padding", padding)
            weight = padding.to(inputs.dtype).unsqueeze(2)
            # Whatever stands in the padding, even NaN, meets no sum.
            inputs = torch.where(weight > 0, inputs, 0.0)
            n = weight.sum(1, dtype=wide)
            n = n.masked_fill(n == 0, 1.0)
        scale = n.rsqrt().to(inputs.dtype)
        use, ignore = (None, None) if self.num_children is None else (self.beta_use, self.beta_ign)
        return _Children(inputs, self.W_A, self.B_A, self.W_S, self.B_S, use, ignore, ignored, weight, scale)

    # One iteration

    def _is_long(self, children: _Children) -> bool:
        batch, count = children.x.shape[:2]
        if torch.compiler.is_compiling() or batch * count * self.num_parents <= PIECE:
            return False
        # torch.func knows no gradient that makes credits again.
        return not is_transformed(children.x, *self.parameters())

    def _many(self, children: _Children) -> Callable[[_Children, Tensor | None], tuple[Tensor, Tensor]]:
        """`_part` of many children, a few at a time."""
        batch = children.x.shape[0]
        length = max(1, PIECE // (batch * self.num_parents))
        if children.beta_use is None and not autocast_is_on(children.x.device):
            gradients = LongGradients(self.iterations)
            return lambda children, predicted: self._long(children, predicted, length, gradients)
        pieces = _pieces(children, length)  # once, so that gradients of all iterations are put together once

        def sums(_: _Children, predicted: Tensor | None) -> tuple[Tensor, Tensor]:
            mixed = children.x.new_zeros(batch, self.num_parents, self.in_features)
            total = children.x.new_zeros(batch, self.num_parents)
            for piece in pieces:
                if torch.is_grad_enabled():
                    part = checkpoint(self._part, piece, predicted, use_reentrant=False, preserve_rng_state=False)
                else:
                    part = self._part(piece, predicted)
                mixed, total = mixed + part[0], total + part[1]
            return mixed, total

        return sums

    def _long(
        self, children: _Children, predicted: Tensor | None, length: int, gradients: LongGradients
    ) -> tuple[Tensor, Tensor]:
        weights, biases = self._linear(predicted)
        weights = weights.expand(children.x.shape[0], -1, -1)
        own = (biases, children.B_A, children.W_S, children.B_S)
        mixed, total = LongSums.apply(
            children.x, weights, *own, children.scale, children.weight, children.ignored, length, gradients
        )
        return mixed, total

    def _linear(self, predicted: Tensor | None) -> tuple[Tensor, Tensor]:
        """All that is linear in a child, where betas are: weights [1 or b,m,d] and biases of the betas."""
        use, ignore = self.compute_beta_use, self.compute_beta_ign

        def mixtures(use: Tensor, ignore: Tensor) -> list[Tensor]:
            # At first R is 1 / parents: one number instead of two betas.
            return [(use + ignore) / self.num_parents - ignore] if predicted is None else [use + ignore, ignore]

        weights = torch.cat([self.W_A, *mixtures(use.weight, ignore.weight)]).unsqueeze(0)
        if predicted is not None:
            weights = torch.cat([weights.expand(predicted.shape[0], -1, -1), predicted], 1)
        return weights, torch.cat(mixtures(use.bias, ignore.bias))

    def _part(self, children: _Children, predicted: Tensor | None) -> tuple[Tensor, Tensor]:
        phi = self._credits(children, predicted)  # [b, c, j]
        return torch.bmm(phi.mT, children.x) * children.scale.unsqueeze(2), phi.sum(1)

    def _credits(self, children: _Children, predicted: Tensor | None) -> Tensor:
        """phi [b,c,j] = f(a) (R (beta_use + beta_ign) - beta_ign): what a child adds to a parent, or takes away."""
        if children.beta_use is None or children.beta_ign is None:
            weights, biases = self._linear(predicted)
            linear = torch.matmul(children.x, weights.mT)
            own = (children.B_A, children.W_S, children.B_S)
            return linear_credits(linear, biases, *own, children.scale, children.weight, children.ignored)
        score = torch.einsum("bcd,cd->bc", children.x, children.W_A)
        use, ignore = children.beta_use, children.beta_ign
        if predicted is None:
            net = (use + ignore) / self.num_parents - ignore
        else:
            logits = children.W_S * torch.bmm(children.x, predicted.mT) + children.B_S
            net = shares(F.logsigmoid(logits), children.ignored) * (use + ignore) - ignore
        return gated(net, score, children.B_A, children.scale, children.weight, children.ignored)

    def _mix(self, mixed: Tensor, total: Tensor) -> Tensor:
        """y [b,j,h] from the two sums."""
        return torch.matmul(mixed * self.W_F1, self.W_F2) + total.unsqueeze(2) * self.B_F2

    def _predict(self, found: Tensor) -> Tensor:
        """What each parent expects its children to be [b,j,d]."""
        normed = _layer_norm(found) if self.out_features > 1 else found
        return torch.matmul(normed, self.W_G1) * self.W_G2 + self.B_G2

    def extra_repr(self) -> str:
        return (
            f"children={self.num_children}, parents={self.num_parents}, in_features={self.in_features}, "
            f"out_features={self.out_features}, iterations={self.iterations}, normalise={self.normalise}"
        )


def _layer_norm(found: Tensor) -> Tensor:
    """LayerNorm of y [b,j,h], which is as long as the square of a child where betas are linear in it: its own square
    would overflow. Such vectors are made shorter first; what eps adds is less than their rounding either way."""
    long = torch.finfo(statistics_dtype(found)).max ** 0.25
    scale = (found.detach().abs().amax(2, keepdim=True) / long).clamp_min(1)
    return F.layer_norm(found / scale, found.shape[2:])


def _pieces(children: _Children, length: int) -> list[_Children]:
    """The children, so many at a time; what all of them share is in every piece."""
    count = children.x.shape[1]
    # split, not slices: its way back puts gradients together once, where slices would add full tensors of zeros.
    parts = {"x": children.x.split(length, 1)}
    number = len(parts["x"])
    for name in ("W_A", "B_A", "W_S", "B_S", "beta_use", "beta_ign"):
        tensor = getattr(children, name)
        own = tensor is not None and tensor.shape[0] == count and count > 1
        parts[name] = tensor.split(length, 0) if own else (tensor,) * number
    for name in ("ignored", "weight"):
        tensor = getattr(children, name)
        parts[name] = (None,) * number if tensor is None else tensor.split(length, 1)
    parts["scale"] = (children.scale,) * number
    return [_Children(**{name: part[index] for name, part in parts.items()}) for index in range(number)]


def credit(coefficients: list[Tensor], eps: float = 1e-5) -> Tensor:
    """Each input's share in each output of a stack of routings: phi of each layer -> [b, first i, last j].

    coefficients [b,i,j] of the layers in order, each divided by its standard deviation over a sample, then multiplied.

    >>> import torch
    >>> from capsroute.layers.vector_routing import credit
    >>> credit([torch.randn(2, 100, 8), torch.randn(2, 8, 5)]).shape
    torch.Size([2, 100, 5])
    """
    if not coefficients:
        raise ValueError("coefficients: expected those of at least one layer, got none")
    product: Tensor | None = None
    for place, phi in enumerate(coefficients):
        if place and phi.shape[:2] != coefficients[place - 1].shape[::2]:
            batch, children = coefficients[place - 1].shape[::2]
            expected = f"({batch}, {children}, ...) as layer {place}"
            raise ValueError(f"coefficients: expected {expected}, got {tuple(phi.shape)}")
        deviation = phi.flatten(1).std(1, correction=min(1, phi.shape[1] * phi.shape[2] - 1))
        scaled = phi / (deviation[:, None, None] + eps)
        product = scaled if product is None else torch.bmm(product, scaled)
    assert product is not None
    return product
