"""Routing pooling (Zhao & Huang 2019, algorithm 1) as one operation, `capsroute::pooling`, or question by question."""

from collections.abc import Callable

import torch
from torch import Tensor

from capsroute.form.contractions.plain import statistics_dtype
from capsroute.form.operations import Operation
from capsroute.form.rows.squash import plain_lengths, unit


def pooling(
    votes, iterations: int, sharpness: float, normalise: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Poses [b,j,a,o] and coefficients [b,i,j] of votes; `normalise` replaces softmax over children of equal weight.

    `cr.form.explain("pooling", u, parents, iterations)` says why there are no kernels for children u [b,i,a,k].
    """
    u = votes.children_as_votes() if normalise is None else None
    found = None if u is None else POOLING.attempt(votes.backend, u, votes.parents, iterations, sharpness)
    if found is not None:
        return found
    c = votes.filled(1 / max(votes.children, 1))
    c = c if normalise is None else normalise(torch.zeros_like(c))
    how = (iterations, sharpness, over_children if normalise is None else normalise)
    return _by_questions(votes.agreement, votes.aggregate, votes.norms(), c, *how)


def over_children(logits: Tensor) -> Tensor:
    """Softmax over children: what a parent receives sums to one (Zhao & Huang 2019, equation 3)."""
    return logits.softmax(1)


def _by_questions(
    agreement: Callable[[Tensor], Tensor], aggregate: Callable[[Tensor], Tensor], norms: Tensor, c: Tensor,
    iterations: int, sharpness: float, normalise: Callable[[Tensor], Tensor] = over_children,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    norms = torch.where(norms == 0, 1.0, norms)  # a zero vote agrees with nobody: 0 / 1
    total = aggregate(c)
    query = torch.zeros_like(total)
    for _ in range(iterations):
        query = query + unit(total, (2, 3))
        c = normalise(sharpness * agreement(query) / norms)
        total = aggregate(c)
    return total, c


def _plain(u: Tensor, parents: int, iterations: int, sharpness: float) -> tuple[Tensor, Tensor]:
    V = u.to(statistics_dtype(u)).flatten(2)  # [b, i, a*k]
    return _by_questions(
        lambda q: torch.bmm(V, q.flatten(2).mT), lambda c: torch.bmm(c.mT, V).unflatten(2, u.shape[2:]),
        plain_lengths(V, 2).unsqueeze(2), V.new_full((*V.shape[:2], parents), 1 / V.shape[1]), iterations,
        sharpness,
    )  # fmt: skip


def _fake(u, parents, iterations, sharpness):
    b, i, a, k = u.shape
    poses = u.new_empty((b, parents, a, k), dtype=torch.float32)
    rest = poses.new_empty((iterations, b, a * k)), poses.new_empty((iterations, b))
    return poses, poses.new_empty((b, i, parents)), *rest


POOLING = Operation(
    "pooling", _plain, tensors=1, asks=(0, 1, 2), results=2, kept=slice(4), fake=_fake, seldom=(1,),
    fake_backward=lambda u: [u.new_empty(u.shape)],
    schema="(Tensor u, int parents, int iterations, float sharpness) -> (Tensor, Tensor, Tensor, Tensor)",
)  # fmt: skip
