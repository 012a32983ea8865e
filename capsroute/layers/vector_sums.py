"""Sums over long sequences of children, as vector routing takes them, a few children at a time.

Credits phi [b,c,j] of children whose betas are linear in them come out of one matrix product; their sums are all that
is kept, and the way back makes credits again, piece by piece, with derivatives in closed form.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

__all__ = ["LongGradients", "LongSums", "credit_gradients", "gated", "linear_credits", "shares"]


def linear_credits(
    linear: Tensor,
    biases: Tensor,
    B_A: Tensor,
    W_S: Tensor,
    B_S: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    ignored: Tensor | None,
) -> Tensor:
    """phi [b,c,j] from what is linear in a child [b,c,m]: its score, betas, product with each prediction."""
    parents = W_S.shape[1]
    if linear.shape[2] == 1 + parents:
        score, net = linear.split([1, parents], 2)
        net = net + biases
    else:
        score, both, ignore, product = linear.split([1, parents, parents, parents], 2)
        share = shares(F.logsigmoid(W_S * product + B_S), ignored)
        net = share * (both + biases[:parents]) - (ignore + biases[parents:])
    return gated(net, score.squeeze(2), B_A, scale, weight, ignored)


def gated(
    net: Tensor, score: Tensor, B_A: Tensor, scale: Tensor, weight: Tensor | None, ignored: Tensor | None
) -> Tensor:
    gate = (scale * score + B_A).sigmoid().unsqueeze(2)  # [b, c, 1]
    phi = (gate if weight is None else gate * weight) * net
    return phi if ignored is None else phi.masked_fill(ignored, 0.0)


class LongGradients:
    """The gradient of the children over all iterations: one tensor, which each way back adds to."""

    def __init__(self, iterations: int):
        self.iterations, self.begun, self.children = iterations, 0, None

    def enter(self) -> int:
        """The number of an iteration, from 0."""
        self.begun += 1
        return self.begun - 1


class LongSums(torch.autograd.Function):
    """sum_i phi_ij xs_i [b,j,d] and sum_i phi_ij [b,j] of children whose betas are linear, `length` at a time.

    Nothing of size children x parents is kept, and the children's gradient is one matrix product a piece, written into
    its place. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weights: Tensor, biases: Tensor, B_A: Tensor, W_S: Tensor, B_S: Tensor, scale: Tensor,
        weight: Tensor | None, ignored: Tensor | None, length: int, gradients: LongGradients,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        ctx.save_for_backward(x, weights, biases, B_A, W_S, B_S, scale, weight, ignored)
        ctx.length, ctx.gradients, ctx.iteration = length, gradients, gradients.enter()
        mixed, total = x.new_zeros(x.shape[0], W_S.shape[1], x.shape[2]), x.new_zeros(x.shape[0], W_S.shape[1])
        for start in range(0, x.shape[1], length):
            piece = x[:, start : start + length]
            linear = torch.bmm(piece, weights.mT)
            phi = linear_credits(linear, biases, B_A, W_S, B_S, scale, *_cut(weight, ignored, start, length))
            mixed.baddbmm_(phi.mT, piece)
            total += phi.sum(1)
        return mixed * scale.unsqueeze(2), total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_mixed: Tensor, d_total: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, biases, B_A, W_S, B_S, scale, weight, ignored = ctx.saved_tensors
        d_mixed = d_mixed * scale.unsqueeze(2)
        last, d_x = ctx.iteration == ctx.gradients.iterations - 1, None
        if ctx.needs_input_grad[0]:
            d_x = torch.empty_like(x) if last else ctx.gradients.children
        back = torch.cat([weights, d_mixed], 1)  # [b, m + j, d]
        m, d_weights, own = weights.shape[1], torch.zeros_like(weights), (biases, B_A, W_S, B_S)
        d_own = [torch.zeros_like(tensor) for tensor in own]
        for start in range(0, x.shape[1], ctx.length):
            piece = x[:, start : start + ctx.length]
            d_phi = torch.bmm(piece, d_mixed.mT).add_(d_total.unsqueeze(1))
            there = _cut(weight, ignored, start, ctx.length)
            front, *found = credit_gradients(torch.bmm(piece, weights.mT), d_phi, *own, scale, *there)
            d_weights.baddbmm_(front[:, :, :m].mT, piece)
            for total, part in zip(d_own, found):
                if part is not None:
                    total += part
            if d_x is not None:
                # What is in an empty tensor counts for nothing: beta = 0.
                d_x[:, start : start + ctx.length].baddbmm_(front, back, beta=0.0 if last else 1.0)
        # Ways back run from the last iteration to the first, which hands over what all of them added up.
        ctx.gradients.children = None if ctx.iteration == 0 else d_x
        return d_x if ctx.iteration == 0 else None, d_weights, *d_own, None, None, None, None, None


def credit_gradients(
    linear: Tensor,
    d_phi: Tensor,
    biases: Tensor,
    B_A: Tensor,
    W_S: Tensor,
    B_S: Tensor,
    scale: Tensor,
    weight: Tensor | None,
    ignored: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The way back through `linear_credits`: [b,c,m+j], the gradient of `linear` with phi beside it, then gradients of
    biases, B_A, W_S and B_S, of parameters that all children share. Writes over d_phi.

    In closed form, and where it can in place: each number is read and written as few times as torch allows.
    """
    parents, m = W_S.shape[1], linear.shape[2]
    front = linear.new_empty(*linear.shape[:2], m + parents)
    d_linear, phi = front.split([m, parents], 2)
    gate = (scale * linear[:, :, 0] + B_A).sigmoid().unsqueeze(2)  # [b, c, 1]
    there = gate if weight is None else gate * weight
    if ignored is not None:
        d_phi.masked_fill_(ignored, 0.0)
    d_W_S = d_B_S = None
    if m == 1 + parents:
        net = linear[:, :, 1:] + biases
        d_gate = (d_phi * net).sum(2)
        torch.mul(d_phi, there, out=d_linear[:, :, 1:])
    else:
        both, ignore, product = linear[:, :, 1:].split(parents, 2)
        d_both, d_ignore, d_product = d_linear[:, :, 1:].split(parents, 2)
        z = torch.addcmul(B_S, W_S, product)
        share = shares(F.logsigmoid(z), ignored)
        both = both + biases[:parents]
        net = (share * both).sub_(ignore).sub_(biases[parents:])
        d_gate = (d_phi * net).sum(2)
        d_net = d_phi.mul_(there)
        torch.neg(d_net, out=d_ignore)
        torch.mul(d_net, share, out=d_both)
        d_logits = both.mul_(d_both)  # share times its own gradient, as softmax wants it
        d_logits.addcmul_(share, d_logits.sum(2, keepdim=True), value=-1.0)
        d_z = d_logits.mul_(z.neg_().sigmoid_())
        torch.mul(d_z, W_S, out=d_product)
        d_B_S, d_W_S = d_z.sum((0, 1)).unsqueeze(0), (d_z * product).sum((0, 1)).unsqueeze(0)
    torch.mul(net, there, out=phi)
    if ignored is not None:
        phi.masked_fill_(ignored, 0.0)
    d_score = d_gate if weight is None else d_gate * weight.squeeze(2)
    d_score = d_score * (gate * (1 - gate)).squeeze(2)  # [b, c]
    d_linear[:, :, 0] = d_score * scale
    return front, d_linear[:, :, 1 : 1 + len(biases)].sum((0, 1)), d_score.sum().view(1), d_W_S, d_B_S


def _cut(weight: Tensor | None, ignored: Tensor | None, start: int, length: int) -> tuple[Tensor | None, Tensor | None]:
    there = slice(start, start + length)
    return None if weight is None else weight[:, there], None if ignored is None else ignored[:, there]


def shares(logits: Tensor, ignored: Tensor | None) -> Tensor:
    """Softmax over parents; ignored ones get nothing, and a child that all ignore gives nothing."""
    if ignored is None:
        return logits.softmax(2)
    everywhere = ignored.all(2, keepdim=True)
    return logits.masked_fill(ignored & ~everywhere, -torch.inf).softmax(2)
