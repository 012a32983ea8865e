"""Poses as arguments and as tensors: `8` is a vector of 8, `(4, 4)` a matrix; a map of capsules becomes a list of
them."""

from typing import NamedTuple

from torch import Tensor

from capsroute.registered import register_output

__all__ = ["Capsules", "Pose", "flatten_positions", "parse_pose"]

Pose = int | tuple[int, int]


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
    rows, columns = (1, pose) if isinstance(pose, int) else pose
    if rows < 1 or columns < 1:
        raise ValueError(f"{name}: expected positive sizes, got {pose!r}")
    return rows, columns


def flatten_positions(poses: Tensor, scores: Tensor | None = None) -> Capsules:
    """A map of capsules [b,n,a,k,h,w] as a list [b,n*h*w,a,k], capsule types outermost; lists pass through.

    >>> import torch
    >>> from capsroute.layers import flatten_positions
    >>> flatten_positions(torch.zeros(2, 32, 1, 8, 6, 6)).poses.shape
    torch.Size([2, 1152, 1, 8])
    """
    if poses.dim() == 6:
        poses = poses.permute(0, 1, 4, 5, 2, 3).flatten(1, 3)
    if scores is not None and scores.dim() == 4:
        scores = scores.flatten(1)
    return Capsules(poses, scores)
