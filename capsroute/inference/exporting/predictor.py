"""What is exported: images in, class scores and poses out, without the decoder (Zhao et al. 2019, section 2)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

__all__ = ["Predictor", "random_images"]


class Predictor(nn.Module):
    """images [b,c,h,w] -> (scores [b,classes], poses [b,j,a,o]), or scores alone where a model has no class capsules.

    >>> import torch, capsroute as cr
    >>> from capsroute.inference.exporting.predictor import Predictor
    >>> scores, poses = Predictor(cr.create_model("capsnet_small", image_size=8))(torch.rand(2, 1, 8, 8))
    >>> scores.shape, poses.shape
    (torch.Size([2, 10]), torch.Size([2, 10, 1, 8]))
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        shape = tuple(getattr(model, "input_shape", ()))
        if len(shape) != 3 or None in shape:
            raise ValueError(f"model: expected one for images of one size, got input_shape {shape}")
        self.input_shape: tuple[int, int, int] = shape
        self.model = copy.deepcopy(model).eval()
        if getattr(model, "decoder", None) is not None:
            self.model.register_module("decoder", None)
        with torch.no_grad():
            self.has_poses = self.model(random_images(self, 1)).poses is not None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        output = self.model(images)
        return (output.scores, output.poses) if self.has_poses else (output.scores,)

    @property
    def output_names(self) -> list[str]:
        """A name for each output."""
        return ["scores", "poses"] if self.has_poses else ["scores"]


def random_images(predictor: Predictor, batch: int) -> Tensor:
    """Images of the right size, device and dtype to try a network with; always the same."""
    weight = next(predictor.parameters())
    images = torch.rand(batch, *predictor.input_shape, generator=torch.Generator().manual_seed(batch))
    return images.to(weight)
