"""The router of variational Bayes (Ribeiro et al. 2020): betas, and batch norms between layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.gaussian_routers import SCORES_FROM_VARIANCE
from capsroute.layers.router import Router, all_active, register_routing
from capsroute.routing import Routed
from capsroute.votes import Votes

__all__ = ["VBRouter"]


@register_routing("vb")
class VBRouter(Router):
    """`cr.vb_routing` with learned beta_use and beta_activate [j]; children without scores count as active.

    Poses and scores then go through batch norms without affine map, one mean and deviation for each parent, and scores
    through the logistic function. `logits=True` leaves that out, for class capsules that are trained by cross-entropy;
    `batch_norm=False` leaves out the norms. `equal=True` keeps the coefficients as they start.
    """

    undecayed = ("beta_use", "beta_activate")
    score_kind = "probability"
    scores_classes = True
    activation = None
    competes_over = "parents"
    competes_over_positions = True
    takes_coefficients = SCORES_FROM_VARIANCE.format("vb")

    def __init__(self, iterations: int = 3, batch_norm: bool = True, logits: bool = False, equal: bool = False):
        super().__init__()
        self.iterations, self.batch_norm, self.logits, self.equal = iterations, batch_norm, logits, equal

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        self.beta_use = nn.Parameter(torch.zeros(parents))
        self.beta_activate = nn.Parameter(torch.zeros(parents))
        if self.batch_norm:
            self.pose_norm = nn.BatchNorm1d(parents, affine=False)
            self.score_norm = nn.BatchNorm1d(parents, affine=False)

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        if scores is None:
            scores = all_active(votes)
        if self.equal:
            first = competition.get("first")
            start = torch.as_tensor(self.first_coefficient(votes.children, votes.parents) if first is None else first)
            competition["normalise"] = lambda logits: start.to(logits).expand_as(logits)
        routed = algorithms.vb_routing(
            votes, scores, self.beta_use, self.beta_activate, self.iterations, **competition
        )  # fmt: skip
        poses, found = routed.poses, routed.scores
        assert found is not None
        if self.batch_norm and poses.shape[0] > 0:
            poses = self.pose_norm(poses.flatten(2)).view_as(poses)
            # Of one number there is no deviation: a batch of one sample trains as it is evaluated.
            found = self.score_norm(found) if not self.training or found.shape[0] > 1 else self._evaluated(found)
        return routed._replace(poses=poses, scores=found if self.logits else found.sigmoid())

    def _evaluated(self, scores: Tensor) -> Tensor:
        norm = self.score_norm
        return nn.functional.batch_norm(scores, norm.running_mean, norm.running_var, eps=norm.eps)

    def uniform(self) -> Router:
        return self.altered(equal=True)
