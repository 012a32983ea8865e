"""One step of inverted attention (Tsai 2020, procedure 1) as one operation, `capsroute::attention_step`.

Nothing of size children x parents is kept between forward and backward.
"""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.form.contractions.operators import CONTRACTIONS
from capsroute.form.dispatch import reachable
from capsroute.form.operations import Operation
from capsroute.form.window import WHOLE, Window, cut

__all__ = ["attention_step"]


def attention_step(votes, parents: Tensor, scale: float, coefficients: bool) -> tuple[Tensor, Tensor | None]:
    """Sums of votes [b,j,a,o], and the coefficients [b,i,j]: softmax over parents of scale * (parents . votes).

    Where kernels apply (`cr.form.explain("attention_step", map, W, window)` says why not), coefficients that are not
    asked for are not stored.
    """
    factors = votes.map_factors() if reachable(votes.device) else None
    if factors is not None:
        u, W, window = factors
        u, window = (u[..., None, None], WHOLE) if window is None else (u, window)
        found = STEP.attempt(votes.backend, u, W, parents, scale, list(window), coefficients)
        if found is not None:
            return found[0], found[1] if coefficients else None
    return _by_questions(votes.agreement, votes.aggregate, parents, scale)


def _by_questions(agreement, aggregate, parents: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    # Scaling the parents, not the agreement, touches [b,j,a,o] instead of [b,i,j].
    c = agreement(parents if scale == 1 else parents * scale).softmax(2)
    return aggregate(c), c


def _plain(u: Tensor, W: Tensor, parents: Tensor, scale: float, window: list[int], coefficients: bool):
    children = cut(u, Window(*window))
    return _by_questions(
        lambda q: CONTRACTIONS["agreement"](children, W, q), lambda c: CONTRACTIONS["aggregate"](c, children, W),
        parents.float(), scale,
    )  # fmt: skip


def _fake(u, W, parents, scale, window, coefficients):
    shape = (parents.shape[0], W.shape[0], W.shape[1]) if coefficients else (0,)
    return parents.new_empty(parents.shape, dtype=torch.float32), parents.new_empty(shape, dtype=torch.float32)


def _fake_backward(u, W, parents):
    from capsroute.form.maps import empty_gradient

    return [empty_gradient(u), W.new_empty(W.shape), parents.new_empty(parents.shape)]


# The kernels know no gradient of the coefficients.
STEP = Operation(
    "attention_step", _plain, tensors=3, asks=(0, 1, 4), foreign=(1,), falls_back=True, fake=_fake,
    fake_backward=_fake_backward,
    schema="(Tensor u, Tensor W, Tensor parents, float scale, int[] window, bool coefficients) -> (Tensor, Tensor)",
)  # fmt: skip
