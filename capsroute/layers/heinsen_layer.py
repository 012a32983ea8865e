"""Heinsen routing as a layer with the authors' freedoms (Heinsen 2019, section 2.1): children and parents, each fixed
or free."""

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.layers.gaussian_routers import HeinsenRouter
from capsroute.layers.linear import RoutedLayer
from capsroute.layers.pose import Pose, flatten_positions
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least
from capsroute.votes import LinearVotes


class HeinsenRouting(RoutedLayer):
    """Route a fixed or free number of children to a fixed or free number of parents.

    `children=None`: transforms, biases and betas are shared by all children. `parents=None`: they are shared by all
    parents, the caller gives `parents` in each call, and `spread` [1,a,o], learned from zero, times a number that runs
    from -1 to 1 along the parents is added to their votes: the only thing that can make them differ.

    >>> import torch, capsroute as cr
    >>> layer = cr.layers.HeinsenRouting(children=None, parents=5, in_pose=(4, 4), out_pose=(4, 4))
    >>> routed = layer(torch.randn(2, 100, 4, 4), torch.randn(2, 100))
    >>> routed.poses.shape, routed.scores.shape
    (torch.Size([2, 5, 4, 4]), torch.Size([2, 5]))
    """

    undecayed = ("spread",)

    def __init__(
        self,
        children: int | None,
        parents: int | None,
        in_pose: Pose,
        out_pose: Pose,
        iterations: int = 3,
        eps: float = 1e-5,
        single_beta: bool = False,
        backend: str = "auto",
        soft_k_means: bool = False,
    ):
        for name, count in (("children", children), ("parents", parents)):
            if count is not None:
                check_at_least(name, count, 1)
        router = HeinsenRouter(iterations, eps, single_beta, soft_k_means=soft_k_means)
        super().__init__(router, in_pose, out_pose, backend)
        self.num_children, self.num_parents = children, parents
        self.make_transforms(children or 1, parents or 1, None)
        self.bias = nn.Parameter(torch.zeros(children or 1, parents or 1, self.rows, self.out_columns))
        self.spread = nn.Parameter(torch.zeros(1, self.rows, self.out_columns)) if parents is None else None
        self.build_routing(children, parents or 1)

    def votes(  # type: ignore[override]
        self, poses: Tensor, parents: int | None = None
    ) -> LinearVotes:
        self.check_count(poses, self.num_children)
        if self.spread is None:
            if parents not in (None, self.num_parents):
                raise ValueError(f"parents: this layer has {self.num_parents} parents in every call, got {parents}")
            return LinearVotes(poses, self.W, self.bias, self.backend)
        if parents is None:
            raise ValueError("parents: this layer has a free number of parents; say how many in the call, got None")
        along = torch.linspace(-1, 1, parents, dtype=self.bias.dtype, device=self.bias.device)[:, None, None]
        bias = self.bias + along * self.spread  # [i or 1, j, a, o]
        return LinearVotes(poses, self.W.expand(-1, parents, -1, -1), bias, self.backend)

    def forward(
        self,
        poses: Tensor,
        scores: Tensor | None = None,
        return_coefficients: bool = False,
        parents: int | None = None,
    ) -> Routed:
        leading = self.input.leading(poses)
        if leading is not None:
            scores = None if scores is None else leading.fold(scores)
            return leading.unfold(self.forward(leading.fold(poses), scores, return_coefficients, parents))
        children, child_scores = flatten_positions(self.input.read(poses, self.W), scores)
        routed = self.routing(self.votes(children, parents), child_scores)
        coefficients = routed.coefficients if return_coefficients else None
        return Routed(routed.poses.to(poses.dtype), coefficients, routed.scores, routed.variances)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """In weights of version 0.1 the spread was a constant one."""
        if self.spread is not None and f"{prefix}W" in state_dict:
            state_dict.setdefault(f"{prefix}spread", torch.ones_like(self.spread))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def extra_repr(self) -> str:
        return f"children={self.num_children}, parents={self.num_parents}, W={tuple(self.W.shape)}"
