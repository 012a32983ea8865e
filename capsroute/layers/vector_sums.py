"""Sums over long sequences of children, as vector routing takes them, a few children at a time.

Credits phi [b,c,j] of children whose betas are linear in them come out of one matrix product; their sums are all that
is kept, and the way back makes credits again, piece by piece.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


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
    """The gradient of the children over all iterations: one tensor, which each way back adds to.

    Second derivatives may pass by some of the iterations: from the first of them on each has a gradient of its own.
    """

    def __init__(self, iterations: int):
        self.iterations, self.begun, self.children, self.apart = iterations, 0, None, False

    def enter(self) -> int:
        """The number of an iteration, from 0."""
        self.begun += 1
        return self.begun - 1


class LongSums(torch.autograd.Function):
    """sum_i phi_ij xs_i [b,j,d] and sum_i phi_ij [b,j] of children whose betas are linear, `length` at a time.

    Nothing of size children x parents is kept, and the children's gradient is one matrix product per piece, written
    into its place. A gradient that is to be differentiated again (`create_graph=True`) is made as that of short inputs.
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
    def backward(ctx: Any, d_mixed: Tensor, d_total: Tensor) -> tuple[Tensor | None, ...]:
        x, weights, biases, B_A, W_S, B_S, scale, weight, ignored = ctx.saved_tensors
        if torch.is_grad_enabled():
            ctx.gradients.apart = True
            return _recorded_gradients(ctx, d_mixed, d_total)
        d_mixed = d_mixed * scale.unsqueeze(2)
        apart, d_x = ctx.gradients.apart, None
        last, first = apart or ctx.iteration == ctx.gradients.iterations - 1, apart or ctx.iteration == 0
        if ctx.needs_input_grad[0]:
            d_x = torch.empty_like(x) if last else ctx.gradients.children
        back = torch.cat([weights, d_mixed], 1)  # [b, m + j, d]
        d_weights, own = torch.zeros_like(weights), (biases, B_A, W_S, B_S)
        d_own = [torch.zeros_like(tensor) for tensor in own]
        for start in range(0, x.shape[1], ctx.length):
            piece = x[:, start : start + ctx.length]
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in (torch.bmm(piece, weights.mT), *own)]
                there = _cut(weight, ignored, start, ctx.length)
                phi = linear_credits(*leaves, scale, *there)  # type: ignore[call-arg]
            d_phi = torch.bmm(piece, d_mixed.mT) + d_total.unsqueeze(1)
            d_linear, *found = torch.autograd.grad(phi, leaves, d_phi, allow_unused=True)
            d_weights.baddbmm_(d_linear.mT, piece)
            for total, part in zip(d_own, found):
                if part is not None:
                    total += part
            if d_x is not None:
                front = torch.cat([d_linear, phi.detach()], 2)
                # What is in an empty tensor counts for nothing: beta = 0.
                d_x[:, start : start + ctx.length].baddbmm_(front, back, beta=0.0 if last else 1.0)
        # Ways back run from the last iteration to the first, which hands over what all of them added up.
        ctx.gradients.children = None if first else d_x
        return d_x if first else None, d_weights, *d_own, None, None, None, None, None


def _whole_sums(
    x: Tensor, weights: Tensor, biases: Tensor, B_A: Tensor, W_S: Tensor, B_S: Tensor, scale: Tensor,
    weight: Tensor | None, ignored: Tensor | None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """What `LongSums` gives, of all children at once."""
    phi = linear_credits(torch.matmul(x, weights.mT), biases, B_A, W_S, B_S, scale, weight, ignored)
    return torch.bmm(phi.mT, x) * scale.unsqueeze(2), phi.sum(1)


def _recorded_gradients(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of one iteration, of which autograd keeps all it needs."""
    needs = ctx.needs_input_grad
    # Views, for partial derivatives: weights were predicted from the same children.
    given: list[Any] = [None if tensor is None else tensor.view_as(tensor) for tensor in ctx.saved_tensors]
    needed = [tensor for tensor, needs_it in zip(given, needs) if needs_it]
    found = iter(torch.autograd.grad(_whole_sums(*given), needed, grads, create_graph=True, allow_unused=True))
    return tuple(next(found) if needs_it else None for needs_it in needs)


def _cut(weight: Tensor | None, ignored: Tensor | None, start: int, length: int) -> tuple[Tensor | None, Tensor | None]:
    there = slice(start, start + length)
    return None if weight is None else weight[:, there], None if ignored is None else ignored[:, there]


def shares(logits: Tensor, ignored: Tensor | None) -> Tensor:
    """Softmax over parents; ignored ones get nothing, and a child that all ignore gives nothing."""
    if ignored is None:
        return logits.softmax(2)
    everywhere = ignored.all(2, keepdim=True)
    return logits.masked_fill(ignored & ~everywhere, -torch.inf).softmax(2)
