"""Routers that fit a Gaussian to the votes for each parent, with the betas they learn: EM, Heinsen, and
variational Bayes (Ribeiro et al. 2020), which has batch norms between layers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from capsroute import routing as algorithms
from capsroute.layers.router import VARIANCE_FLOOR, Router, all_active, register_routing
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least, check_positive
from capsroute.votes import Votes

SCORES_FROM_VARIANCE = (
    "under {!r} routing the scores of its parents come from the variance of the votes, which a weighted sum of votes "
    "does not have"
)


class _ActivatedGaussians(Router):
    """Gaussians with an activation, learned beta_use and beta_activate [j]; children without scores count as active.

    `equal=True` keeps the coefficients as they start, all iterations of them: one alone would leave EM's temperature at
    its start.
    """

    undecayed = ("beta_use", "beta_activate")
    score_kind = "probability"
    scores_classes = True
    activation = None
    competes_over = "parents"
    competes_over_positions = True
    equal: bool

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        self.beta_use = nn.Parameter(torch.zeros(parents))
        self.beta_activate = nn.Parameter(torch.zeros(parents))

    def routed(self, route: Callable[..., Routed], votes: Votes, scores: Tensor | None, **options: Any) -> Routed:
        """What the algorithm gives; options are its own, and who competes."""
        if self.equal:
            start = options.get("first", self.first_coefficient(votes.children, votes.parents))
            options["normalise"] = lambda logits: votes.filled(start)
        scores = all_active(votes) if scores is None else scores
        return route(votes, scores, self.beta_use, self.beta_activate, **options)

    def uniform(self) -> Router:
        return self.altered(equal=True)


@register_routing("em")
class EMRouter(_ActivatedGaussians):
    """`cr.em_routing` with learned beta_use and beta_activate [j]; children without scores count as active.

    `equal=True` keeps the coefficients as they start.
    """

    takes_coefficients = SCORES_FROM_VARIANCE.format("em")

    def __init__(self, iterations: int = 3, variance_floor: float = VARIANCE_FLOOR, equal: bool = False):
        super().__init__()
        check_at_least("iterations", iterations, 1)
        check_positive("variance_floor", variance_floor)
        self.iterations, self.variance_floor, self.equal = iterations, variance_floor, equal

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        options = {"iterations": self.iterations, "variance_floor": self.variance_floor, **competition}
        return self.routed(algorithms.em_routing, votes, scores, **options)


@register_routing("heinsen")
class HeinsenRouter(Router):
    """`cr.heinsen_routing` with learned betas [i or 1, j]; children without scores count as always on.

    `single_beta=True` makes the benefit to use and the cost to ignore one parameter, as the authors' code can.
    `relative=True` makes betas that a free number of children share mean the same for any number; others stay as they
    are. `soft_k_means=True` shares children out by distance alone, the authors' `p_model="skm"`.
    """

    undecayed = ("beta_use", "beta_ignore")
    score_kind = "logit"
    scores_classes = True
    activation = None
    competes_over = "parents"
    takes_coefficients = SCORES_FROM_VARIANCE.format("heinsen")

    def __init__(
        self,
        iterations: int = 3,
        eps: float = 1e-5,
        single_beta: bool = False,
        relative: bool = False,
        soft_k_means: bool = False,
    ):
        super().__init__()
        check_at_least("iterations", iterations, 1)
        check_positive("eps", eps)
        self.iterations, self.eps, self.single_beta, self.relative = iterations, eps, single_beta, relative
        self.soft_k_means = soft_k_means

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        self.shared = children is None
        self.beta_use = nn.Parameter(torch.zeros(children or 1, parents))
        shape = self.beta_use.shape
        self.beta_ignore = self.beta_use if self.single_beta else nn.Parameter(torch.zeros(shape))

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        if scores is None:
            shape = (votes.batch, votes.children)
            scores = torch.full(shape, torch.inf, dtype=votes.statistics_dtype, device=votes.device)
        # Where parameters were moved or assigned one by one, two names are no longer one parameter.
        other = self.beta_use if self.single_beta else self.beta_ignore
        # Betas for a free number of parents are one column, the same for all.
        use, ignore = (beta.expand(-1, votes.parents) for beta in (self.beta_use, other))
        relative = self.relative and self.shared
        options = (self.iterations, self.eps, relative, self.soft_k_means)
        return algorithms.heinsen_routing(votes, scores, use, ignore, *options)

    def uniform(self) -> Router:
        return self.altered(iterations=1)


@register_routing("vb")
class VBRouter(_ActivatedGaussians):
    """`cr.vb_routing` with learned beta_use and beta_activate [j]; children without scores count as active.

    Poses and scores then go through batch norms without affine map, one mean and deviation for each parent, and scores
    through the logistic function. `logits=True` leaves that out, for class capsules that are trained by cross-entropy;
    `batch_norm=False` leaves out the norms. `equal=True` keeps the coefficients as they start.
    """

    takes_coefficients = SCORES_FROM_VARIANCE.format("vb")

    def __init__(self, iterations: int = 3, batch_norm: bool = True, logits: bool = False, equal: bool = False):
        super().__init__()
        check_at_least("iterations", iterations, 1)
        self.iterations, self.batch_norm, self.logits, self.equal = iterations, batch_norm, logits, equal

    def build(self, children: int | None, parents: int, pose: tuple[int, int] | None = None) -> None:
        super().build(children, parents, pose)
        if self.batch_norm:
            self.pose_norm = nn.BatchNorm1d(parents, affine=False)
            self.score_norm = nn.BatchNorm1d(parents, affine=False)

    @property
    def parent_score_kind(self) -> str:
        return "logit" if self.logits else "probability"

    def forward(self, votes: Votes, scores: Tensor | None = None, **competition: Any) -> Routed:
        routed = self.routed(algorithms.vb_routing, votes, scores, iterations=self.iterations, **competition)
        poses, found = routed.poses, routed.scores
        assert found is not None
        if self.batch_norm and poses.shape[0] > 0:
            # The norms of a layer in half precision keep their statistics in it, and torch takes no other numbers then.
            statistics, wide = self.pose_norm.running_mean, poses.dtype
            kept = wide if statistics is None else statistics.dtype
            poses, found = self.pose_norm(poses.flatten(2).to(kept)).view_as(poses).to(wide), found.to(kept)
            # Of one number there is no deviation: a batch of one sample trains as it is evaluated.
            alone = self.training and found.shape[0] == 1 and statistics is not None
            found = self._evaluated(found) if alone else self.score_norm(found)
            found = found.to(wide)
        scores = found if self.logits else found.sigmoid()
        return Routed(poses, routed.coefficients, scores, routed.variances)

    def _evaluated(self, scores: Tensor) -> Tensor:
        norm = self.score_norm
        return nn.functional.batch_norm(scores, norm.running_mean, norm.running_var, eps=norm.eps)
