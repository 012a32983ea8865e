"""Routers that attend: inverted dot-product attention with its options (Tsai et al. 2020, procedure 1 and figure 4),
self-attention, by one look at all votes, and self-routing, by each child alone."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.gaussian_routers import SCORES_FROM_VARIANCE
from capsroute.layers.pose import PoseLayerNorm
from capsroute.layers.router import VARIANCE_FLOOR, Router, all_active, register_routing
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least
from capsroute.votes import LinearVotes, Votes


@register_routing("inverted_attention")
class InvertedAttentionRouter(Router):
    """`cr.inverted_attention_routing`, stepped `iterations` times when the layer stands alone.

    `scale=True` multiplies the agreement by 1/sqrt(a*o) as the released code does. `norm` is None for LayerNorm over
    the pose, "affine" for one that learns a scale and a shift (the released code), "none" to leave it out (ablation
    A of the paper), or a module or function. `activations=True` gives capsules the activations of EM routing (ablation
    C): a child counts as much as it is active, and a parent is active as far as the votes for it agree. `equal=True`
    keeps the coefficients of the first step.
    """

    undecayed = ("beta_use", "beta_activate")
    spares_coefficients = True
    child_bias = False  # a shift before LayerNorm's own would be one too many; the released code has none
    competes_over = "parents"
    container_rows = "softmax"

    def __init__(
        self,
        iterations: int = 2,
        scale: bool = False,
        norm: str | Callable[[Tensor], Tensor] | None = None,
        activations: bool = False,
        equal: bool = False,
    ):
        super().__init__()
        if isinstance(norm, str) and norm not in ("none", "affine"):
            raise ValueError(f"norm: expected None, 'affine', 'none', a module or a function, got {norm!r}")
        check_at_least("iterations", iterations, 1)
        self.iterations, self.scale, self.activations, self.equal = iterations, scale, activations, equal
        self.norm = norm
        self.score_kind = "probability" if activations else None
        self.takes_coefficients = not activations or SCORES_FROM_VARIANCE.format(self.name)
        if norm not in (None, "none", "affine"):
            self.takes_coefficients = "its norm is a module of its own, which fast routing does not know"

    @property
    def activation(self) -> str | Callable[[Tensor], Tensor] | None:  # type: ignore[override]
        return {None: "layer_norm", "affine": "affine_layer_norm", "none": None}.get(self.norm, self.norm)  # type: ignore

    @property
    def child_activation(self) -> str:
        return "affine_layer_norm" if self.norm == "affine" else "layer_norm"

    def fresh_std(self, children: int, parents: int, k: int, o: int) -> float:
        """The rule of the released code, where the number of children is known."""
        return (parents / (children * k)) ** 0.5 if children > 1 else super().fresh_std(children, parents, k, o)

    def uniform(self) -> Router:
        return self.altered(equal=True)

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        if self.norm == "affine":
            if pose is None:
                raise ValueError("pose: norm='affine' has one scale and shift per number of the pose, got None")
            self.layer_norm = PoseLayerNorm(*pose)
        if self.activations:
            self.beta_use = nn.Parameter(torch.zeros(parents))
            self.beta_activate = nn.Parameter(torch.zeros(parents))

    def forward(
        self, votes: Votes, scores: Tensor | None = None, coefficients: bool = True, **competition: Any
    ) -> Routed:
        votes = votes.keeping()
        if self._takes_steps_at_once():
            return algorithms.inverted_attention_routing(
                votes, scale=self._scale(votes), coefficients=coefficients, iterations=self.iterations
            )
        last = self.iterations - 1
        routed = self.step(votes, scores, None, coefficients and last == 0)
        for iteration in range(1, self.iterations):
            routed = self.step(votes, scores, routed.poses, coefficients and iteration == last)
        return routed

    def step(self, votes: Votes, scores: Tensor | None, parents: Tensor | None, coefficients: bool = True) -> Routed:
        parents = None if self.equal else parents
        asked = coefficients or self.activations
        routed = algorithms.inverted_attention_routing(votes, parents, self._scale(votes), self.normalise, asked)
        return self._activate(votes, scores, routed) if self.activations else routed

    def _takes_steps_at_once(self) -> bool:
        """Whether steps are all alike, and those of this class: a subclass or a trace may have put others in place."""
        ours = (self.step, InvertedAttentionRouter.step), (self.normalise, InvertedAttentionRouter.normalise)
        if any(getattr(method, "__func__", None) is not function for method, function in ours):
            return False
        return self.norm is None and not self.activations and not self.equal

    def _scale(self, votes: Votes) -> float | None:
        return 1 / math.sqrt(votes.rows * votes.columns) if self.scale else None

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
