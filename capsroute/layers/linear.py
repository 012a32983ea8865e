"""Routed layers whose children are a list: fully connected capsules, with transforms per child or shared."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.form import check_backend
from capsroute.layers.pose import Pose, PoseInput, flatten_positions, parse_pose
from capsroute.layers.router import Router, check_routed, make_router
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least, check_finite
from capsroute.votes import LinearVotes


class RoutedLayer(nn.Module):
    """What all routed layers share: a router, votes made of the children, one result.

    A subclass makes `votes(poses)`, and says how maps of capsules go in and come out. Poses can have any axes in front,
    or none, as in torch's own layers; those that come out have the same. `out_pose` has as many rows as `in_pose`, or
    is a vector: matrices are then read as vectors.
    """

    W: nn.Parameter  # [i or 1, j, k, o]
    takes_lists = True  # else maps alone
    in_stack = False  # a stack hands on the scores of one layer to the next, whether it reads them or not

    def __init__(self, routing: str | dict | Router, in_pose: Pose, out_pose: Pose, backend: str = "auto"):
        super().__init__()
        self.routing = make_router(routing)
        self.backend = check_backend(backend)
        self.input = PoseInput(in_pose, out_pose, self.takes_lists)
        self.rows, self.in_columns = self.input.rows, self.input.columns
        self.out_columns = parse_pose("out_pose", out_pose)[1]

    def make_transforms(self, children: int, parents: int, std: float | None) -> None:
        """Fresh W [children, parents, k, o], normal as each paper has it: truncated under squash, else not."""
        check_at_least("parents", parents, 1)
        if std is not None:
            check_finite("std", std)
            if std < 0:
                raise ValueError(f"std: expected a number >= 0, got {std!r}")
        self.W = nn.Parameter(torch.empty(children, parents, self.in_columns, self.out_columns))
        std = self.routing.fresh_std(*self.W.shape) if std is None else std
        if self.routing.activation == "squash":
            nn.init.trunc_normal_(self.W, std=std, a=-2 * std, b=2 * std)
        else:
            nn.init.normal_(self.W, std=std)

    def build_routing(self, children: int | None, parents: int) -> None:
        """Make the router's parameters for this many children (None: any number) and parents."""
        self._routes = (children, parents)
        self.input.one_fits = children in (None, 1)
        self.routing.in_pose = (self.rows, self.in_columns)
        self.routing.build(children, parents, (self.rows, self.out_columns))

    def set_routing(self, routing: str | dict | Router) -> None:
        """Route by another algorithm from now on, with fresh betas; the transforms stay as they are.

        >>> import capsroute as cr
        >>> layer = cr.layers.CapsuleLinear(children=1152, parents=10, in_pose=8, out_pose=16)
        >>> layer.set_routing({"name": "max_min", "iterations": 1})
        >>> layer.routing.name
        'max_min'
        """
        self.routing = make_router(routing)
        self.build_routing(*self._routes)
        self.routing.to(self.W).train(self.training)

    def check_count(self, poses: Tensor, expected: int | None) -> None:
        """The children are as many as there are transforms for; None takes any number."""
        if expected is not None and poses.shape[1] != expected:
            raise ValueError(f"poses: expected {expected} children, got {poses.shape[1]} (shape {tuple(poses.shape)})")

    def votes(self, poses: Tensor, size: tuple[int, int] | None = None) -> LinearVotes:
        """What the children [b,i,a,k] say to each parent; `size` is (h, w) where they came as a map."""
        raise NotImplementedError

    def forward(self, poses: Tensor, scores: Tensor | None = None, return_coefficients: bool = False) -> Routed:
        """Route the children to the parents. Coefficients are None unless asked for; asking changes nothing else."""
        self._check_scores(scores)
        leading = self.input.leading(poses)
        if leading is None:
            return self._route(self.input.read(poses, self.W), scores, return_coefficients)
        scores = None if scores is None else leading.fold(scores)
        return leading.unfold(self.forward(leading.fold(poses), scores, return_coefficients))

    def _check_scores(self, scores: Tensor | None) -> None:
        """Scores that nobody reads may be a mask that its owner believes in."""
        unread = scores is not None and self.routing.mask_kind is None
        if unread and not self.in_stack and not torch.compiler.is_compiling():
            name, own = self.routing.name, type(self.routing).__name__
            message = f"scores: {name!r} routing reads none, so those that were given change nothing"
            warnings.warn(f"{message}; where it does read them, set {own}.score_kind", stacklevel=4)

    def _children(self, poses: Tensor, scores: Tensor | None) -> tuple[LinearVotes, Tensor | None]:
        """Votes, and the children's scores [b,i], of poses with one axis in front."""
        children, child_scores = flatten_positions(poses, scores)
        return self.votes(children, _size(poses)), child_scores

    def _route(self, poses: Tensor, scores: Tensor | None, return_coefficients: bool) -> Routed:
        """`forward` of poses with one axis in front."""
        votes, child_scores = self._children(poses, scores)
        options = {"coefficients": return_coefficients} if self.routing.spares_coefficients else {}
        routed = check_routed(self.routing, self.routing(votes, child_scores, **options), votes, return_coefficients)
        return _finish(routed, poses, return_coefficients)

    def step(
        self,
        poses: Tensor,
        scores: Tensor | None,
        parents: Tensor | None,
        return_coefficients: bool = False,
        made: dict[str, Any] | None = None,
    ) -> Routed:
        """One routing step from the parents' previous poses (None: the first step).

        `made` is a dict of whoever takes several steps: votes are kept there, and made anew for other children.
        """
        self.routing.check_steps()
        self._check_scores(scores)
        leading = self.input.leading(poses)
        if leading is not None:
            scores, parents = (None if given is None else leading.fold(given) for given in (scores, parents))
            return leading.unfold(self.step(leading.fold(poses), scores, parents, return_coefficients))
        if made is None or made.get("poses") is not poses or made["scores"] is not scores:
            votes, child_scores = self._children(self.input.read(poses, self.W), scores)
            if made is not None:
                votes = votes.keeping()
                made.update(poses=poses, scores=scores, votes=votes, child_scores=child_scores)
        else:
            votes, child_scores = made["votes"], made["child_scores"]
        return self._step(votes, child_scores, parents, return_coefficients, poses)

    def _step(
        self,
        votes: LinearVotes,
        scores: Tensor | None,
        parents: Tensor | None,
        return_coefficients: bool,
        poses: Tensor,
    ) -> Routed:
        """`step` of children that came as these poses, with one axis in front."""
        routed = self.routing.step(votes, scores, parents, return_coefficients)
        check_routed(self.routing, routed, votes, return_coefficients)
        return _finish(routed, poses, return_coefficients)


def _size(poses: Tensor) -> tuple[int, int] | None:
    return (poses.shape[4], poses.shape[5]) if poses.dim() == 6 else None


def _finish(routed: Routed, poses: Tensor, return_coefficients: bool) -> Routed:
    coefficients = routed.coefficients if return_coefficients else None
    # Not `_replace`, which torch.compile of torch 2.6 does not trace.
    return Routed(routed.poses.to(poses.dtype), coefficients, routed.scores, routed.variances)


class CapsuleLinear(RoutedLayer):
    """Fully connected capsules: every child votes for every parent through its own transform, or through a shared one.

    poses [b,i,a,k], or a map [b,n,a,k,h,w] that is flattened -> Routed with poses [b,j,a,o].
    `children=None` shares the transforms (W[1,j,k,o]) and takes any number of children.

    >>> import torch, capsroute as cr
    >>> layer = cr.layers.CapsuleLinear(children=1152, parents=10, in_pose=8, out_pose=16, routing="dynamic")
    >>> layer(torch.randn(2, 1152, 1, 8)).poses.shape
    torch.Size([2, 10, 1, 16])
    """

    def __init__(
        self,
        children: int | None,
        parents: int,
        in_pose: Pose,
        out_pose: Pose,
        routing: str | dict | Router = "dynamic",
        bias: bool = False,
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(routing, in_pose, out_pose, backend)
        if children is not None:
            check_at_least("children", children, 1)
        self.num_children, self.num_parents = children, parents
        self.make_transforms(children or 1, parents, std)
        shape = (children or 1, parents, self.rows, self.out_columns)
        self.bias = nn.Parameter(torch.zeros(shape)) if bias else None
        self.build_routing(children, parents)

    def votes(self, poses: Tensor, size: tuple[int, int] | None = None) -> LinearVotes:
        self.check_count(poses, self.num_children)
        return LinearVotes(poses, self.W, self.bias, self.backend)

    def extra_repr(self) -> str:
        return f"children={self.num_children}, parents={self.num_parents}, rows={self.rows}, W={tuple(self.W.shape)}"
