"""Routers without iterations: self-routing, by each child alone, and self-attention, by one look at all votes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.router import Router, all_active, register_routing
from capsroute.routing import Routed
from capsroute.votes import LinearVotes, Votes


@register_routing("self_attention")
class SelfAttentionRouter(Router):
    """`cr.self_attention_routing` with a learned prior [i or 1, j] that starts at zero."""

    undecayed = ("prior",)
    activation = "exponential_squash"
    competes_over = "parents"
    takes_coefficients = True
    container_rows = "softmax"
    sums_votes = True

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        self.prior = nn.Parameter(torch.zeros(children or 1, parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        return algorithms.self_attention_routing(votes, self.prior)

    def fresh_std(self, children: int, parents: int, k: int, o: int) -> float:
        return 0.1


@register_routing("self_routing")
class SelfRouter(Router):
    """`cr.self_routing` with logits u_i . w_ij + b_ij, both learned and zero at first, so that shares start equal.

    w [i or 1, j, a*k] reads the whole pose of a child. Children without scores count as active.
    """

    undecayed = ("b",)
    score_kind = "probability"
    # Its scores come from the children alone: a class layer that reads nothing else would never use its transforms.
    scores_classes = False
    activation = None
    competes_over = "parents"
    takes_coefficients = "under 'self_routing' the scores of parents are made of the children's shares, not of votes"

    def __init__(self, equal: bool = False):
        super().__init__()
        self.equal = equal

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if self.in_pose is None:
            raise ValueError("in_pose: self-routing reads the children's poses; set the router's in_pose, got None")
        self.w = nn.Parameter(torch.zeros(children or 1, parents, self.in_pose[0] * self.in_pose[1]))
        self.b = nn.Parameter(torch.zeros(children or 1, parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        if not isinstance(votes, LinearVotes):
            raise ValueError(f"votes: self-routing reads the children themselves, got {type(votes).__name__}")
        if scores is None:
            scores = all_active(votes)
        return algorithms.self_routing(votes, scores, self.logits(votes.u.flatten(2)))

    def logits(self, children: Tensor) -> Tensor:
        """Children [b,i,a*k] -> logits [b,i,j]."""
        children = children.to(self.w.dtype)
        if self.w.shape[0] == 1:
            product = torch.matmul(children, self.w[0].mT)
        else:
            product = torch.bmm(children.transpose(0, 1), self.w.mT).transpose(0, 1)
        return (product + self.b) * (0.0 if self.equal else 1.0)

    def uniform(self) -> Router:
        return self.altered(equal=True)
