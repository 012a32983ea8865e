"""All positions of a map vote for one set of parents (Hinton et al. 2018, class capsules)."""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.layers.linear import RoutedLayer
from capsroute.layers.pose import Pose
from capsroute.layers.router import Router
from capsroute.routing import Routed
from capsroute.votes import LinearVotes


class CapsuleGlobal2d(RoutedLayer):
    """Transforms belong to a capsule type and are shared over positions; `coordinates` keeps where a vote came from.

    poses [b,n,a,k,h,w] -> Routed with poses [b,j,a,o]. Coordinate addition puts the child's place, in (0, 1), onto
    the last column of the first two rows of its vote (the first two numbers of a vector pose).

    >>> import torch, capsroute as cr
    >>> layer = cr.layers.CapsuleGlobal2d(32, 10, (4, 4), (4, 4), routing="em")
    >>> layer(torch.randn(2, 32, 4, 4, 5, 5), torch.rand(2, 32, 5, 5)).scores.shape
    torch.Size([2, 10])
    """

    takes_lists = False

    def __init__(
        self,
        in_capsules: int,
        parents: int,
        in_pose: Pose,
        out_pose: Pose,
        routing: str | dict | Router = "em",
        coordinates: bool = True,
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(routing, in_pose, out_pose, backend)
        if coordinates and self.rows * self.out_columns < 2:
            raise ValueError(f"coordinates: need a pose of at least two numbers, got out_pose={out_pose!r}")
        self.in_capsules, self.num_parents, self.coordinates = in_capsules, parents, coordinates
        self.make_transforms(in_capsules, parents, std)
        self.build_routing(None, parents)

    def _route(self, poses: Tensor, scores: Tensor | None, return_coefficients: bool) -> Routed:
        if poses.dim() != 6 or poses.shape[1] != self.in_capsules:
            raise ValueError(f"poses: expected [b,{self.in_capsules},a,k,h,w], got {tuple(poses.shape)}")
        return super()._route(poses, scores, return_coefficients)

    def votes(self, poses: Tensor, size: tuple[int, int] | None = None) -> LinearVotes:
        if size is None:
            raise ValueError("size: transforms are shared over positions; say (h, w) of the map, got None")
        height, width = size
        W = self.W.repeat_interleave(height * width, 0)
        return LinearVotes(poses, W, self._places(height, width) if self.coordinates else None, self.backend)

    def coordinate(self, side: int) -> Tensor:
        """What is added to the votes of each of so many rows, or columns."""
        return (torch.arange(side, dtype=self.W.dtype, device=self.W.device) + 0.5) / side

    def _places(self, height: int, width: int) -> Tensor:
        y, x = self.coordinate(height), self.coordinate(width)
        o = self.out_columns
        places = self.W.new_zeros(height, width, self.rows * o)
        first, second = (o - 1, 2 * o - 1) if self.rows > 1 else (0, 1)
        places[..., first] = y[:, None]
        places[..., second] = x[None, :]
        places = places.view(1, height * width, 1, self.rows, o)
        return places.expand(self.in_capsules, -1, self.num_parents, -1, -1).flatten(0, 1)  # [n*h*w, j, a, o]

    def extra_repr(self) -> str:
        return f"{self.in_capsules}, {self.num_parents}, W={tuple(self.W.shape)}, coordinates={self.coordinates}"
