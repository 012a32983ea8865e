"""How faithful an explanation is: take out the tokens it calls important, or put only those in, and watch the score."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.routing.checks import check_at_least, check_no_nan, check_probabilities


class Faithfulness(NamedTuple):
    """Probabilities of the explained class as tokens go, or come; an explanation is good if deletion falls early."""

    fractions: Tensor  # [s], the part of the tokens taken out, or put in
    deletion: Tensor  # [b, s], the probability with the most important tokens taken out
    insertion: Tensor  # [b, s], the probability with only the most important tokens

    def areas(self) -> tuple[float, float]:
        """The mean probability under deletion (lower is better) and under insertion (higher is better)."""
        return self.deletion.mean().item(), self.insertion.mean().item()


def deletion_insertion(
    scores: Callable[[Tensor, Tensor], Tensor],
    tokens: Tensor,
    importance: Tensor,
    classes: Tensor,
    mask: Tensor | None = None,
    steps: int = 10,
) -> Faithfulness:
    """The probability of `classes` [b] while tokens are taken out, and put in, in the order of `importance` [b,n].

    `scores(tokens, mask)` gives logits [b,classes] for tokens [b,n,...] of which `mask` [b,n] says which are there.

    >>> import torch, capsroute as cr
    >>> head = cr.models.RoutingHead(8, 3, pooling="mean")
    >>> tokens = torch.randn(2, 12, 8)
    >>> found = cr.analysis.deletion_insertion(
    ...     lambda tokens, mask: head(tokens, mask).scores, tokens, torch.rand(2, 12), torch.tensor([0, 2]), steps=4
    ... )
    >>> found.deletion.shape, found.fractions.tolist()
    (torch.Size([2, 5]), [0.0, 0.25, 0.5, 0.75, 1.0])
    """
    if importance.shape != tokens.shape[:2]:
        raise ValueError(f"importance: expected [b,n] = {list(tokens.shape[:2])}, got {list(importance.shape)}")
    check_no_nan("importance", importance)
    check_at_least("steps", steps, 1)
    _check_classes(classes, tokens)
    if mask is not None and mask.shape != importance.shape:
        raise ValueError(f"mask: expected [b,n] = {list(importance.shape)}, got {list(mask.shape)}")
    if mask is not None:
        check_probabilities("mask", mask)  # 0 and -1e9 would be read the wrong way round
        if not bool(((mask == 0) | (mask == 1)).all()):  # half a token would count as a whole one
            raise ValueError("mask: expected zeros and ones, for a token is there or taken out, got numbers between")
    there = torch.ones_like(importance, dtype=torch.bool) if mask is None else mask.bool()
    # Padding comes last, whatever an explanation says of it, and of others: the least may be -inf.
    order = importance.argsort(1, descending=True)
    order = order.gather(1, there.gather(1, order).long().argsort(dim=1, descending=True, stable=True))
    rank = order.argsort(1)
    count = there.sum(1, keepdim=True)
    fractions = torch.linspace(0, 1, steps + 1)
    deletion: list[Tensor] = []
    insertion: list[Tensor] = []
    with torch.no_grad():
        for fraction in fractions.tolist():
            top = rank < (fraction * count).round()
            for kept, curve in ((there & ~top, deletion), (there & top, insertion)):
                probabilities = scores(tokens, kept).float().softmax(1)
                curve.append(probabilities.gather(1, classes.unsqueeze(1)).squeeze(1))
    return Faithfulness(fractions, torch.stack(deletion, 1), torch.stack(insertion, 1))


def gradient_times_input(scores: Callable[[Tensor], Tensor], tokens: Tensor, classes: Tensor) -> Tensor:
    """Importance of each token [b,n]: its gradient of the class's score, times itself, summed over features.

    >>> import torch, capsroute as cr
    >>> head = cr.models.RoutingHead(8, 3, pooling="attention")
    >>> tokens = torch.randn(2, 12, 8)
    >>> cr.analysis.gradient_times_input(lambda x: head(x).scores, tokens, torch.tensor([0, 2])).shape
    torch.Size([2, 12])
    """
    _check_classes(classes, tokens)
    tokens = tokens.detach().requires_grad_()
    chosen = scores(tokens).gather(1, classes.unsqueeze(1)).sum()
    (gradient,) = torch.autograd.grad(chosen, tokens)
    return (gradient * tokens).flatten(2).sum(2).detach()


def _check_classes(classes: Tensor, tokens: Tensor) -> None:
    if classes.shape != tokens.shape[:1]:  # fewer would leave samples out
        raise ValueError(f"classes: expected one for each of {len(tokens)} samples, got {list(classes.shape)}")
