"""The masked decoder that reconstructs the input from class capsules (Sabour 2017, section 4.1)."""

from numbers import Integral

import torch
from torch import Tensor, nn

from capsroute.layers.pose import Pose, parse_pose
from capsroute.routing.checks import check_at_least, one_hot


def mask_capsules(poses: Tensor, labels: Tensor) -> Tensor:
    """Class capsules [b,j,a,o] with all but the named ones zeroed, flattened to [b,j*a*o].

    labels: class indices [b], or a 0/1 mask [b,j] for several objects.

    >>> import torch
    >>> from capsroute.layers import mask_capsules
    >>> mask_capsules(torch.ones(2, 10, 1, 16), torch.tensor([3, 7])).sum(1)
    tensor([16., 16.])
    """
    if poses.dim() != 4:
        raise ValueError(f"poses: expected [b,j,a,o], got shape {tuple(poses.shape)}")
    mask = one_hot(labels, poses.shape[1]) if labels.dim() == 1 else labels
    if mask.shape != poses.shape[:2]:
        raise ValueError(f"labels: expected [b] or [b,j] = {tuple(poses.shape[:2])}, got {tuple(labels.shape)}")
    mask = mask if mask.dtype == torch.bool else mask.to(poses.dtype)
    return (poses * mask[:, :, None, None]).flatten(1)


class Decoder(nn.Module):
    """Three fully connected layers from the masked class capsules to an image in [0,1].

    poses [b,j,a,o], labels [b] or [b,j] -> image [b,c,h,w]. Give the true label while training and the predicted one
    when testing.

    >>> import torch, capsroute as cr
    >>> decoder = cr.layers.Decoder(capsules=10, pose=16, image_shape=(1, 28, 28))
    >>> decoder(torch.randn(2, 10, 1, 16), torch.tensor([3, 7])).shape
    torch.Size([2, 1, 28, 28])
    """

    def __init__(
        self, capsules: int, pose: Pose, image_shape: tuple[int, int, int], hidden: tuple[int, int] = (512, 1024)
    ):
        super().__init__()
        self.image_shape = _image_shape(image_shape)
        channels, height, width = self.image_shape
        rows, columns = parse_pose("pose", pose)
        check_at_least("capsules", capsules, 1)
        if len(hidden) != 2:
            raise ValueError(f"hidden: expected two widths, got {hidden!r}")
        for size in hidden:
            check_at_least("hidden", size, 1)
        self.layers = nn.Sequential(
            nn.Linear(capsules * rows * columns, hidden[0]),
            nn.ReLU(),
            nn.Linear(hidden[0], hidden[1]),
            nn.ReLU(),
            nn.Linear(hidden[1], channels * height * width),
        )

    def forward(self, poses: Tensor, labels: Tensor) -> Tensor:
        masked = mask_capsules(poses, labels)
        # Asked of the layer, which may be another by now (`reset_classifier`) or a wrapped one, which need not say it.
        inputs = getattr(self.layers[0], "in_features", masked.shape[1])
        if masked.shape[1] != inputs:
            raise ValueError(f"poses: expected {inputs} numbers a sample, got shape {tuple(poses.shape)}")
        return torch.sigmoid(self.layers(masked)).unflatten(1, self.image_shape)


def _image_shape(given: object) -> tuple[int, int, int]:
    sides = tuple(given) if isinstance(given, (tuple, list)) else ()
    whole = all(isinstance(side, Integral) and not isinstance(side, bool) and int(side) >= 1 for side in sides)
    if len(sides) != 3 or not whole:
        raise ValueError(f"image_shape: expected (channels, height, width), got {given!r}")
    channels, height, width = map(int, sides)
    return channels, height, width
