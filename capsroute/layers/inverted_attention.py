"""The router of inverted dot-product attention with its options (Tsai et al. 2020; 001, procedure 1 and figure 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.norm import PoseLayerNorm
from capsroute.layers.router import VARIANCE_FLOOR, Router, all_active
from capsroute.routing import Routed
from capsroute.votes import Votes

__all__ = ["InvertedAttentionRouter"]


class InvertedAttentionRouter(Router):
    """`cr.inverted_attention_routing`, stepped `iterations` times when the layer stands alone.

    `scale=True` multiplies the agreement by 1/sqrt(a*o) as the released code does. `norm` is None for LayerNorm over
    the pose, "affine" for one that learns a scale and a shift (the released code), "none" to leave it out (ablation A
    of 001), or a module or function. `activations=True` gives capsules the activations of EM routing (ablation C):
    a child counts as much as it is active, and a parent is active as far as the votes for it agree.
    """

    name = "inverted_attention"
    undecayed = ("beta_use", "beta_activate")
    spares_coefficients = True

    def __init__(
        self,
        iterations: int = 2,
        scale: bool = False,
        norm: str | Callable[[Tensor], Tensor] | None = None,
        activations: bool = False,
    ):
        super().__init__()
        if isinstance(norm, str) and norm not in ("none", "affine"):
            raise ValueError(f"norm: expected None, 'affine', 'none', a module or a function, got {norm!r}")
        self.iterations, self.scale, self.activations = iterations, scale, activations
        self.norm = norm
        self.score_kind = "probability" if activations else None
        self.child_activation = "affine_layer_norm" if norm == "affine" else "layer_norm"

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if self.norm == "affine":
            if pose is None:
                raise ValueError("pose: norm='affine' has one scale and shift per number of the pose, got None")
            self.layer_norm = PoseLayerNorm(*pose)
        if self.activations:
            self.beta_use = nn.Parameter(torch.zeros(parents))
            self.beta_activate = nn.Parameter(torch.zeros(parents))

    def forward(self, votes: Votes, scores: Tensor | None = None, coefficients: bool = True, **competition) -> Routed:
        votes = votes.hoisted()
        last = self.iterations - 1
        routed = self.step(votes, scores, None, coefficients and last == 0)
        for iteration in range(1, self.iterations):
            routed = self.step(votes, scores, routed.poses, coefficients and iteration == last)
        return routed

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None, coefficients: bool = True) -> Routed:
        scale = 1 / math.sqrt(votes.rows * votes.columns) if self.scale else None
        asked = coefficients or self.activations
        routed = algorithms.inverted_attention_routing(votes, parents, scale, self.normalise, asked)
        return self._activate(votes, scores, routed) if self.activations else routed

    def normalise(self, poses: Tensor) -> Tensor:
        """What `norm` says, of poses [..., a, o]."""
        if self.norm == "affine":
            return self.layer_norm(poses)
        if self.norm == "none":
            return poses
        return algorithms.pose_layer_norm(poses) if self.norm is None else self.norm(poses)  # type: ignore[operator]

    def _activate(self, votes: Votes, scores: Tensor | None, routed: Routed) -> Routed:
        """Children count by their activations; the parents' come from the cost of describing the votes, as in EM."""
        assert routed.coefficients is not None
        active = all_active(votes) if scores is None else scores.to(votes.statistics_dtype)
        weights = routed.coefficients * active.unsqueeze(2)
        _, variances = votes.moments(weights)
        variances = variances.clamp_min(VARIANCE_FLOOR)
        spread = votes.rows * votes.columns * self.beta_use + 0.5 * variances.log().sum((2, 3))
        logits = algorithms.hinton_temperature(self.iterations - 1) * (self.beta_activate - spread * weights.sum(1))
        return Routed(self.normalise(votes.aggregate(weights)), routed.coefficients, logits.sigmoid(), variances)
