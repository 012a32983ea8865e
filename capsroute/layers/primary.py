"""Primary capsules: a convolution whose channels are grouped into poses (Sabour et al. 2017; Tsai et al. 2020); and
dropout of whole capsules: a child that is left out says nothing to any parent."""

import torch
from torch import Tensor, nn

from capsroute.layers.pose import ACTIVATIONS, Capsules, Leading, Pose, PoseLayerNorm, activated, check_like, parse_pose
from capsroute.naming import check_one_of
from capsroute.routing import Routed, pose_layer_norm
from capsroute.routing.checks import check_at_least


class PrimaryCapsules(nn.Module):
    """A map of capsules [b,n,a,k,h,w] from a feature map [b,c,h,w]; any axes in place of b, or none.

    `activation` is "squash" (Sabour 2017), "layer_norm" (Tsai 2020), "affine_layer_norm" (its released code, with a
    learned scale and shift) or None. `scores="logit"` or "probability" adds a convolution that scores each capsule
    [b,n,h,w], for EM and Heinsen routing.

    >>> import torch, capsroute as cr
    >>> primary = cr.layers.PrimaryCapsules(256, 32, 8, kernel_size=9, stride=2)
    >>> primary(torch.randn(2, 256, 20, 20)).poses.shape
    torch.Size([2, 32, 1, 8, 6, 6])
    """

    def __init__(
        self,
        in_channels: int,
        capsules: int,
        pose: Pose,
        kernel_size: int = 1,
        stride: int = 1,
        padding: int = 0,
        activation: str | None = "squash",
        scores: str | None = None,
        bias: bool = True,
    ):
        super().__init__()
        sizes = {"in_channels": in_channels, "capsules": capsules, "kernel_size": kernel_size, "stride": stride}
        for name, size in {**sizes, "padding": padding}.items():
            for side in size if isinstance(size, tuple) else (size,):  # a convolution takes (height, width) too
                check_at_least(name, side, int(name != "padding"))
        check_one_of("activation", activation, ACTIVATIONS)
        if scores not in (None, "logit", "probability"):
            raise ValueError(f"scores: expected None, 'logit' or 'probability', got {scores!r}")
        self.capsules, self.activation, self.score_kind = capsules, activation, scores
        self.rows, self.columns = parse_pose("pose", pose)
        width = capsules * self.rows * self.columns
        self.poses = nn.Conv2d(in_channels, width, kernel_size, stride, padding, bias=bias)
        self.scores = nn.Conv2d(in_channels, capsules, kernel_size, stride, padding) if scores else None
        self.norm = PoseLayerNorm(self.rows, self.columns) if activation == "affine_layer_norm" else None

    def forward(self, features: Tensor) -> Capsules:
        if features.dim() < 3 or features.shape[-3] != self.poses.in_channels:
            raise ValueError(f"features: expected [...,{self.poses.in_channels},h,w], got {list(features.shape)}")
        check_like("features", features, self.poses.weight)
        if features.dim() != 4:
            leading = Leading(tuple(features.shape[:-3]))
            poses, scores = self.forward(leading.fold(features))
            return Capsules(*leading.unfold(Routed(poses, scores))[:2])
        self._check_size(*features.shape[2:])
        poses = self.poses(features).unflatten(1, (self.capsules, self.rows, self.columns))  # [b, n, a, k, h, w]
        poses = activated(poses, self.activation, self.norm or pose_layer_norm, (2, 3))
        if self.scores is None:
            return Capsules(poses, None)
        scores = self.scores(features)
        return Capsules(poses, scores.sigmoid() if self.score_kind == "probability" else scores)

    def _check_size(self, height: int, width: int) -> None:
        """The map holds one window at least."""
        padding = self.poses.padding
        if isinstance(padding, str):  # a convolution of the user's own, which says itself what it needs
            return
        rows, columns = (max(1, side - 2 * edge) for side, edge in zip(self.poses.kernel_size, padding))
        if height < rows or width < columns:
            least = f"{rows} x {columns}"
            raise ValueError(f"features: expected a map of at least {least} positions, got {height} x {width}")

    def extra_repr(self) -> str:
        return f"capsules={self.capsules}, pose=({self.rows}, {self.columns}), activation={self.activation!r}"


class CapsuleDropout(nn.Module):
    """Leave out capsules with probability `p` while training; whoever stays counts for them.

    poses [b,i,a,k] or a map [b,n,a,k,h,w], scores [b,i] or [b,n,h,w] or None -> the same. A capsule that is left out
    has a zero pose, and the score of an absent child where the routing knows one (`mask_kind` of a router). Where it
    does not, the poses that stay are divided by 1 - p, as in torch's own dropout.

    >>> import torch, capsroute as cr
    >>> _ = torch.manual_seed(0)
    >>> poses, _ = cr.layers.CapsuleDropout(0.5)(torch.ones(1, 6, 1, 2))
    >>> poses.unique()
    tensor([0., 2.])
    """

    def __init__(self, p: float = 0.5, mask_kind: str | None = None):
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f"p: expected a number in [0, 1), got {p!r}")
        self.p, self.mask_kind = p, mask_kind

    def forward(self, poses: Tensor, scores: Tensor | None = None) -> Capsules:
        if poses.dim() not in (4, 6):  # of other axes other things than whole capsules would be left out
            raise ValueError(f"poses: expected [b,i,a,k] or a map [b,n,a,k,h,w], got shape {tuple(poses.shape)}")
        if not self.training or self.p == 0:
            return Capsules(poses, scores)
        present = torch.rand_like(poses[:, :, :1, :1], dtype=torch.float32) >= self.p  # [b, i, 1, 1] or of a map
        if self.mask_kind is None:  # nothing but the sum of votes tells who is there
            return Capsules(torch.where(present, poses / (1 - self.p), 0.0), scores)
        always, never = (torch.inf, -torch.inf) if self.mask_kind == "logit" else (1.0, 0.0)
        here = present[:, :, 0, 0]
        scores = torch.full_like(poses[:, :, 0, 0], always) if scores is None else scores
        return Capsules(torch.where(present, poses, 0.0), torch.where(here, scores, never))

    def extra_repr(self) -> str:
        return f"p={self.p}, mask_kind={self.mask_kind!r}"
