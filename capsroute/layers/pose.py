"""Poses as arguments and as tensors: `8` is a vector of 8, `(4, 4)` a matrix; a map of capsules becomes a list of
them; axes in front of a list or a map become one. And the norm of a pose."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from capsroute.form.dispatch import autocast_is_on
from capsroute.form.rows.layer_norm import layer_norm
from capsroute.routing import Routed, exponential_squash, pose_layer_norm, squash
from capsroute.routing.routed import register_output

Pose = int | tuple[int, int]
# What layers without routing can do to a weighted sum of votes as well.
ACTIVATIONS = ("squash", "exponential_squash", "layer_norm", "affine_layer_norm", None)


class Capsules(NamedTuple):
    """Capsules on their way to a routed layer."""

    poses: Tensor  # [b, i, a, k], or a map [b, n, a, k, h, w]
    scores: Tensor | None = None  # [b, i], or a map [b, n, h, w]


register_output(Capsules)


def parse_pose(name: str, pose: Pose) -> tuple[int, int]:
    """(rows, columns) of a pose; a vector has one row.

    >>> from capsroute.layers import parse_pose
    >>> parse_pose("in_pose", 8), parse_pose("in_pose", (4, 4))
    ((1, 8), (4, 4))
    """
    sizes = (1, pose) if isinstance(pose, int) else pose
    right = isinstance(sizes, Sequence) and len(sizes) == 2
    right = right and all(isinstance(size, int) and not isinstance(size, bool) for size in sizes)
    if not right or min(sizes) < 1:
        raise ValueError(f"{name}: expected positive sizes, a whole number or two (rows, columns), got {pose!r}")
    return sizes[0], sizes[1]


def flatten_positions(poses: Tensor, scores: Tensor | None = None) -> Capsules:
    """A map of capsules [b,n,a,k,h,w] as a list [b,n*h*w,a,k], capsule types outermost; lists pass through.

    >>> import torch
    >>> from capsroute.layers import flatten_positions
    >>> flatten_positions(torch.zeros(2, 32, 1, 8, 6, 6)).poses.shape
    torch.Size([2, 1152, 1, 8])
    """
    if poses.dim() == 6:
        if scores is not None and scores.dim() == 4:
            check_map_scores(poses, scores)
        poses = poses.permute(0, 1, 4, 5, 2, 3).flatten(1, 3)
    if scores is not None and scores.dim() == 4:
        scores = scores.flatten(1)
    if scores is not None:
        _check_scores(scores, tuple(poses.shape[:2]), "[b,i]")
    return Capsules(poses, scores)


def check_map_scores(poses: Tensor, scores: Tensor) -> None:
    """Scores [b,n,h,w] are of the capsules of a map [b,n,a,k,h,w]: as many numbers may be of other ones."""
    _check_scores(scores, (*poses.shape[:2], *poses.shape[4:]), "[b,n,h,w]")


def _check_scores(scores: Tensor, shape: tuple[int, ...], letters: str) -> None:
    if scores.dim() != len(shape) or any(have != want for have, want in zip(scores.shape, shape)):
        expected = f"shape {shape} {letters}, as the poses have"
        raise ValueError(f"scores: expected {expected}, got {tuple(scores.shape)}")


class Leading(NamedTuple):
    """The axes in front of capsules, where they are not the one of a batch: none, or several."""

    shape: tuple[int, ...]

    def fold(self, tensor: Tensor) -> Tensor:
        """[..., x] -> [b, x], as many axes as there are become one; those of scores must be those of the poses."""
        if tensor.dim() < len(self.shape) or any(a != b for a, b in zip(tensor.shape, self.shape)):
            raise ValueError(f"scores: expected {self.shape} in front, as the poses have, got {tuple(tensor.shape)}")
        return tensor.reshape(math.prod(self.shape), *tensor.shape[len(self.shape) :])

    def unfold(self, routed: Routed) -> Routed:
        """[b, x] -> [..., x] of everything that came out."""
        parts = (None if part is None else part.reshape(*self.shape, *part.shape[1:]) for part in routed)
        return Routed(*parts)  # type: ignore[arg-type]


def check_like(name: str, given: Tensor, like: Tensor) -> None:
    """A tensor of the type and on the device of a layer's own parameter; autocast makes one of other types itself."""
    if given.device == like.device and given.dtype == like.dtype:
        return
    casts = autocast_is_on(given.device) and given.dtype != torch.float64 and given.is_floating_point()
    if given.device != like.device or not casts:
        expected = f"{like.dtype} on {like.device}, as the layer is"
        raise ValueError(f"{name}: expected {expected}, got {given.dtype} on {given.device}")


class PoseInput:
    """What a layer takes: lists [..., i, a, k] or maps [..., n, a, k, h, w] of capsules, with any axes in front.

    Matrices whose parents are vectors are read row after row: [a, k] as [1, a * k].
    """

    def __init__(self, in_pose: Pose, out_pose: Pose, lists: bool = True):
        self.pose, (rows, _) = parse_pose("in_pose", in_pose), parse_pose("out_pose", out_pose)
        self.lists, self.flattens = lists, rows == 1 < self.pose[0]
        self.rows = rows
        self.one_fits = False  # whether one child may be all there are
        self.columns = math.prod(self.pose) if self.flattens else self.pose[1]
        if rows != self.pose[0] and not self.flattens:
            given = f"in_pose={in_pose!r} and out_pose={out_pose!r}"
            raise ValueError(f"out_pose: expected {self.pose[0]} rows as in_pose has, or one, got {given}")

    def leading(self, poses: Tensor) -> Leading | None:
        """The axes in front; None where they are the one of a batch, or where the shape is wrong anyway."""
        if not isinstance(poses, Tensor):
            inside = "; give its poses" if hasattr(poses, "poses") else ""
            raise ValueError(f"poses: expected a tensor {self._shapes()}, got {type(poses).__name__}{inside}")
        dim = poses.dim()
        is_map = dim >= 5 and (not self.lists or tuple(poses.shape[-4:-2]) == self.pose)
        is_list = self.lists and dim >= 3 and tuple(poses.shape[-2:]) == self.pose
        if (dim == 6 and is_map) or (dim == 4 and is_list) or not (is_map or is_list):
            return None
        if is_map and is_list:
            raise ValueError(
                f"poses: {tuple(poses.shape)} can be a list [...,i,a,k] or a map [...,n,a,k,h,w]; give it one axis in "
                "front, that of a batch"
            )
        if self.one_fits and dim == 3 and self.pose[0] == 1:
            columns = self.pose[1]
            raise ValueError(
                f"poses: {tuple(poses.shape)} can be vectors [b,i,{columns}] of one child each, or a list "
                f"[i,1,{columns}] of one sample; give it as [b,i,1,{columns}]"
            )
        return Leading(tuple(poses.shape[: dim - (5 if is_map else 3)]))

    def read(self, poses: Tensor, like: Tensor) -> Tensor:
        """Poses [b,i,a,k] or [b,n,a,k,h,w], matrices as vectors where parents are such; what else there can be is an
        error, and so is another type or device than that of the layer's own parameter `like`."""
        if self.lists and poses.dim() == 3 and self.pose == (1, poses.shape[2]):
            poses = poses.unsqueeze(2)  # vectors [b,i,k]
        fits = tuple(poses.shape[2:4]) in (self.pose, (self.rows, self.columns))
        if not fits or (self.lists and poses.dim() not in (4, 6)):
            raise ValueError(f"poses: expected {self._shapes()}, got shape {tuple(poses.shape)}")
        check_like("poses", poses, like)
        right = self.flattens and tuple(poses.shape[2:4]) == self.pose
        return poses.flatten(2, 3).unsqueeze(2) if right else poses

    def _shapes(self) -> str:
        pose = "{},{}".format(*self.pose)
        return f"[...,i,{pose}] or a map [...,n,{pose},h,w]" if self.lists else f"[...,n,{pose},h,w]"


def activated(
    poses: Tensor,
    activation: str | None,
    norm: Callable[[Tensor], Tensor] = pose_layer_norm,
    dims: tuple[int, int] = (-2, -1),
) -> Tensor:
    """Poses after one of `ACTIVATIONS`; their rows and columns are `dims`, and `norm` takes [..., a, o]."""
    if activation == "squash":
        return squash(poses, dims)
    if activation == "exponential_squash":
        return exponential_squash(poses, dims)
    if activation is None:
        return poses
    # Capsules of a map go behind its places, where a convolution with channels last has them: nothing is copied then.
    axes = (1, *dims) if dims == (2, 3) else dims
    last = tuple(range(-len(axes), 0))
    return norm(poses.movedim(axes, last)).movedim(last, axes)


class PoseLayerNorm(nn.Module):
    """LayerNorm over rows and columns of poses [..., a, o] together, eps 1e-5, then a learned scale and shift [a, o].

    >>> import torch, capsroute as cr
    >>> cr.layers.PoseLayerNorm(4, 4)(torch.randn(2, 10, 4, 4)).shape
    torch.Size([2, 10, 4, 4])
    """

    undecayed = ("weight", "bias")  # of weight decay: a scale that shrinks switches routing off

    def __init__(self, rows: int, columns: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows, columns))
        self.bias = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, poses: Tensor) -> Tensor:
        return layer_norm(poses, self.weight, self.bias, axes=2)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, {self.weight.shape[1]}"
