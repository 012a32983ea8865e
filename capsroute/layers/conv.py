"""Capsules whose children are a map: convolutional ones, the same form with b = (sample, row, column) and i = (capsule,
kernel row, kernel column); and all positions voting for one set of parents (Hinton et al. 2018, class capsules)."""

from __future__ import annotations

import torch
from torch import Tensor

from capsroute.form.window import Window
from capsroute.layers.linear import RoutedLayer
from capsroute.layers.pose import Pose, check_map_scores
from capsroute.layers.router import Router, check_routed
from capsroute.patches import PatchVotes, patches
from capsroute.routing import Routed
from capsroute.routing.checks import check_at_least
from capsroute.votes import LinearVotes


class CapsuleConv2d(RoutedLayer):
    """A k x k neighbourhood of child capsules votes for the parents at each position.

    poses [b,n,a,k,h,w], scores [b,n,h,w] -> Routed with poses [b,m,a,o,h',w'], scores [b,m,h',w'] and, when asked for,
    coefficients [b,h',w',i,j] with i = (capsule, kernel row, kernel column). With EM routing, parents at different
    positions compete for a child (Hinton et al. 2018); with the others, parents of one position do.

    >>> import torch, capsroute as cr
    >>> layer = cr.layers.CapsuleConv2d(32, 32, (4, 4), (4, 4), kernel_size=3, stride=2, routing="inverted_attention")
    >>> layer(torch.randn(2, 32, 4, 4, 16, 16)).poses.shape
    torch.Size([2, 32, 4, 4, 7, 7])
    """

    takes_lists = False

    def __init__(
        self,
        in_capsules: int,
        out_capsules: int,
        in_pose: Pose,
        out_pose: Pose,
        kernel_size: int = 3,
        stride: int = 1,
        padding: int = 0,
        routing: str | dict | Router = "inverted_attention",
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(routing, in_pose, out_pose, backend)
        for name, value in (("in_capsules", in_capsules), ("kernel_size", kernel_size), ("stride", stride)):
            check_at_least(name, value, 1)
        check_at_least("out_capsules", out_capsules, 1)
        check_at_least("padding", padding, 0)
        self.in_capsules, self.out_capsules = in_capsules, out_capsules
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding
        self.num_children = in_capsules * kernel_size**2
        self.make_transforms(self.num_children, out_capsules, std)
        self.build_routing(self.num_children, out_capsules)

    def _route(self, poses: Tensor, scores: Tensor | None, return_coefficients: bool) -> Routed:
        votes, patch_scores = self._children(poses, scores)
        options = self._competition(poses) if self.routing.competes_over_positions else {}
        if self.routing.spares_coefficients:
            options["coefficients"] = return_coefficients
        routed = check_routed(self.routing, self.routing(votes, patch_scores, **options), votes, return_coefficients)
        return self._to_map(routed, poses, votes, return_coefficients)

    def _step(  # type: ignore[override]
        self, votes: PatchVotes, scores: Tensor | None, parents: Tensor | None, return_coefficients: bool, poses: Tensor
    ) -> Routed:
        """`parents` is a map [b,m,a,o,h',w'] or None."""
        rows = None if parents is None else parents.permute(0, 4, 5, 1, 2, 3).flatten(0, 2)
        routed = self.routing.step(votes, scores, rows, return_coefficients)
        check_routed(self.routing, routed, votes, return_coefficients)
        return self._to_map(routed, poses, votes, return_coefficients)

    @property
    def window(self) -> Window:
        """What moves over the children's map."""
        return Window(self.kernel_size, self.stride, self.padding)

    def output_size(self, height: int, width: int) -> tuple[int, int]:
        """Positions of the parents for a child map of this size."""
        sizes = self.window.positions(height, width)
        if min(sizes) < 1:
            least = max(1, self.kernel_size - 2 * self.padding)
            raise ValueError(f"poses: expected a map of at least {least} x {least} positions, got {height} x {width}")
        return sizes[0], sizes[1]

    def _children(self, poses: Tensor, scores: Tensor | None) -> tuple[PatchVotes, Tensor | None]:
        if poses.dim() != 6 or poses.shape[1] != self.in_capsules:
            raise ValueError(f"poses: expected [b,{self.in_capsules},a,k,h,w], got {tuple(poses.shape)}")
        self.output_size(*poses.shape[4:])
        votes, scores = PatchVotes(poses, self.W, self.window, self.backend), self._scores(poses, scores)
        if scores is None:
            return votes, None
        check_map_scores(poses, scores)
        never = -torch.inf if self.routing.mask_kind == "logit" else 0.0
        return votes, patches(scores, self.window, scores.shape[1:2], never)  # [b*L, n*K]

    def _scores(self, poses: Tensor, scores: Tensor | None) -> Tensor | None:
        """Scores where the routing takes them; made up where none are given but padding must count as absent."""
        if self.routing.mask_kind is None or scores is not None or self.padding == 0:
            return scores
        always = torch.inf if self.routing.mask_kind == "logit" else 1.0
        return torch.full_like(poses[:, :, 0, 0], always)

    def _to_map(self, routed: Routed, poses: Tensor, votes: PatchVotes, return_coefficients: bool) -> Routed:
        size = (poses.shape[0], *votes.places)

        def to_map(x: Tensor) -> Tensor:  # [b*L, j, ...] -> [b, j, ..., h', w']
            return x.view(*size, *x.shape[1:]).permute(0, *range(3, x.dim() + 2), 1, 2)

        return Routed(
            to_map(routed.poses).to(poses.dtype),
            routed.coefficients.unflatten(0, size) if return_coefficients and routed.coefficients is not None else None,
            None if routed.scores is None else to_map(routed.scores),
            None if routed.variances is None else to_map(routed.variances),
        )

    def _competition(self, poses: Tensor) -> dict:
        """Who competes for a child under EM: all parents of all positions whose patch holds it."""
        height, width = (side + 2 * self.padding for side in poses.shape[4:])
        index = self._child_positions(poses)  # [L, K]
        batch, (places, size), types = poses.shape[0], index.shape, self.in_capsules
        flat = index.flatten()  # [L*K]
        count = flat.new_zeros(height * width).scatter_add(0, flat, torch.ones_like(flat))
        # A quotient of whole numbers would be float32, whatever the poses are.
        rivals = (count[index] * self.out_capsules).to(torch.promote_types(torch.float32, poses.dtype))
        first = (1 / rivals).repeat(1, types)  # [L, n*K]

        def normalise(logits: Tensor) -> Tensor:  # [b*L, n*K, j]
            per_child = logits.logsumexp(2).view(batch, places, types, size).transpose(1, 2).flatten(2)  # [b, n, L*K]
            where = flat.expand_as(per_child)
            rooms = per_child.new_full((batch, types, height * width), -torch.inf)
            peak = rooms.scatter_reduce(2, where, per_child.detach(), "amax")
            peak = torch.where(peak.isinf(), 0.0, peak)
            sums = torch.zeros_like(rooms).scatter_add(2, where, (per_child - peak.gather(2, where)).exp())
            total = peak.gather(2, where) + sums.gather(2, where).log()
            total = total.view(batch, types, places, size).transpose(1, 2).flatten(2).flatten(0, 1)
            return (logits - total.unsqueeze(2)).exp()

        return {"normalise": normalise, "first": first.repeat(batch, 1).unsqueeze(2)}

    def _child_positions(self, poses: Tensor) -> Tensor:
        """Where in the padded map, row by row, each child of each patch stands: [L, K]."""
        width = poses.shape[5] + 2 * self.padding
        rows, columns = (torch.arange(n, device=poses.device) * self.stride for n in self.output_size(*poses.shape[4:]))
        steps = torch.arange(self.kernel_size, device=poses.device)
        corner = (rows[:, None] * width + columns).flatten()
        return corner[:, None] + (steps[:, None] * width + steps).flatten()

    def extra_repr(self) -> str:
        return (
            f"{self.in_capsules}, {self.out_capsules}, W={tuple(self.W.shape)}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}, padding={self.padding}"
        )


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
        check_at_least("in_capsules", in_capsules, 1)
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
