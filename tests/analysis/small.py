"""Models small enough for loops, with weights large enough that routing decides something."""

import torch
from torch import nn

import capsroute as cr
from capsroute.models import ImageModel, ModelOutput


def small(routing="dynamic", seed=0, **options) -> ImageModel:
    """A CapsNet for 8 x 8 images: 8 types of child on a 2 x 2 map, 4 classes, vectors of 4, in float64."""
    torch.manual_seed(seed)
    defaults = {"image_size": 8, "num_classes": 4, "class_pose": 4, "decoder": (8, 8), "std": 0.7}
    return cr.create_model("capsnet_small", routing=routing, **{**defaults, **options}).double().eval()


def images(count: int, side: int = 8, channels: int = 1, seed: int = 1) -> torch.Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Stacked(ImageModel):
    """Convolutional capsules under class capsules: two routed layers, one of them with padding on request."""

    def __init__(self, schedule: str = "sequential", padding: int = 0, routing: str = "inverted_attention"):
        super().__init__(1, 7, 3)
        torch.manual_seed(0)
        self.primary = cr.layers.PrimaryCapsules(1, 2, (2, 2), kernel_size=3, activation="layer_norm")  # 5 x 5
        conv = cr.layers.CapsuleConv2d(2, 3, (2, 2), (2, 2), 3, 2, padding, routing=routing, std=1.0)
        places = conv.output_size(5, 5)[0] ** 2
        linear = cr.layers.CapsuleLinear(3 * places, 3, (2, 2), (2, 2), routing=routing, std=1.0)
        for layer in (conv, linear):
            layer.routing.iterations = 3
        self.stack = cr.layers.CapsuleStack([conv, linear], schedule)
        self.double().eval()

    def forward(self, images, labels=None, return_coefficients=False):
        *_, routed = self.stack.route(*self.primary(images), return_coefficients)
        return ModelOutput(routed.poses.flatten(2).norm(dim=2), routed.poses)


class Lookup(ImageModel):
    """Answers by the image's first pixel: pixel k gives row k of a table of scores and of poses."""

    def __init__(self):
        super().__init__(1, 1, 1)
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, images, labels=None, return_coefficients=False):
        rows = images[:, 0, 0, 0].long()
        return ModelOutput(self.score_table[rows], None if self.pose_table is None else self.pose_table[rows])


def lookup(scores: torch.Tensor, poses: torch.Tensor | None = None) -> Lookup:
    model = Lookup()
    model.score_table, model.pose_table = scores, poses
    return model
