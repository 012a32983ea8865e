"""Small networks and data for the tests of fast inference."""

import torch
from torch import nn

import capsroute as cr
from capsroute.layers import CapsuleConv2d, CapsuleLinear, CapsuleStack, PrimaryCapsules
from capsroute.models import ImageModel, ModelOutput
from capsroute.routing import lengths

CLASSES = 4


class OneLayer(ImageModel):
    """Primary capsules and class capsules on 5 x 5 images."""

    def __init__(self, routing="max_min", bias=False, children=18):
        super().__init__(1, 5, CLASSES)
        self.primary = PrimaryCapsules(1, 2, 3, kernel_size=3)  # [b, 2, 1, 3, 3, 3]
        self.capsules = CapsuleLinear(children, CLASSES, 3, 4, routing, bias=bias, std=2.0)
        if bias:
            nn.init.normal_(self.capsules.bias)

    def forward(self, images, labels=None, return_coefficients=False):
        routed = self.capsules(*self.primary(images), return_coefficients)
        coefficients = {"capsules": routed.coefficients} if return_coefficients else None
        return ModelOutput(lengths(routed.poses), routed.poses, None, coefficients)


class TwoLayers(ImageModel):
    """Primary, convolutional and class capsules on 7 x 7 images, with matrix poses [a = 2]."""

    def __init__(self, routing="max_min", class_routing=None, schedule="sequential", hidden=3, padding=1):
        super().__init__(1, 7, CLASSES)
        self.primary = PrimaryCapsules(1, 2, (2, 3), kernel_size=3)  # map of 5 x 5
        hidden_layer = CapsuleConv2d(2, hidden, (2, 3), (2, 2), 3, stride=2, padding=padding, routing=routing, std=2.0)
        side = hidden_layer.output_size(5, 5)[0]
        class_layer = CapsuleLinear(hidden * side**2, CLASSES, (2, 2), (2, 4), class_routing or routing, std=2.0)
        self.stack = CapsuleStack([hidden_layer, class_layer], schedule)

    def forward(self, images, labels=None, return_coefficients=False):
        routed = self.stack.route(*self.primary(images), return_coefficients)
        coefficients = {f"stack.layers.{index}": layer.coefficients for index, layer in enumerate(routed)}
        poses = routed[-1].poses
        return ModelOutput(lengths(poses), poses, None, coefficients if return_coefficients else None)


def make_batches(count=40, size=5, batch=16, seed=0, classes=CLASSES):
    """A list of (images, labels); every class is in it, not equally often."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, size, size, generator=generator)
    labels = torch.randint(0, classes, (count,), generator=generator)
    labels[:classes] = torch.arange(classes)
    return list(zip(images.split(batch), labels.split(batch)))


def quiet_accumulate(model, batches, **options):
    """`accumulate` for networks that nobody trained: the doubt it utters is expected."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return cr.inference.accumulate(model, batches, **options)
