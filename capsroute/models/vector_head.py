"""Vector routing of a transformer's hidden states at all depths (Heinsen 2022, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.layers import VectorRouting, credit
from capsroute.models.base import CapsuleModel, ModelOutput
from capsroute.models.heinsen_text import check_hidden
from capsroute.models.masking import as_weights
from capsroute.models.registry import register_model


class VectorRoutingHead(CapsuleModel):
    """Every token at every depth -> 64 vectors -> 64 vectors -> classes; coefficients are credits phi of each layer.

    hidden [b, tokens, depth, width], mask [b, tokens] with 1 for a token; less multiplies its features. A depth is
    normalised without affine map and then has a scale and shift of its own. `credits` says what each token adds to each
    class.

    >>> import torch, capsroute as cr
    >>> head = cr.create_model("vector_routing_head", depth=3, width=16, num_classes=2)
    >>> mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    >>> head(torch.randn(2, 5, 3, 16), mask=mask).scores.shape, head.credits(torch.randn(2, 5, 3, 16)).shape
    (torch.Size([2, 2]), torch.Size([2, 5, 3, 2]))
    """

    score_kind = "logit"
    default_loss = "cross_entropy"

    def __init__(
        self,
        depth: int = 25,
        width: int = 1024,
        num_classes: int = 5,
        hidden: Sequence[int] = (64, 64),
        iterations: int = 2,
    ):
        super().__init__(num_classes)
        self.input_shape = (None, depth, width)
        self.W, self.B = nn.Parameter(torch.ones(depth, width)), nn.Parameter(torch.zeros(depth, width))
        counts = [None, *hidden]
        layers = [VectorRouting(a, b, width, width, iterations) for a, b in zip(counts, hidden)]
        self.routings = nn.ModuleList([*layers, VectorRouting(counts[-1], num_classes, width, 1, iterations)])

    undecayed = ("W", "B")

    def forward(
        self,
        hidden: Tensor,
        labels: Tensor | None = None,
        return_coefficients: bool = False,
        mask: Tensor | None = None,
    ) -> ModelOutput:
        check_hidden(hidden, mask, self.input_shape)
        x = (F.layer_norm(hidden, hidden.shape[3:]) * self.W + self.B).flatten(1, 2)  # [b, tokens*depth, d]
        padding = None
        if mask is not None:
            padding = as_weights(mask, x.dtype).unsqueeze(2).expand(hidden.shape[:3]).flatten(1)  # [b, tokens*depth]
        coefficients = {}
        for index, layer in enumerate(self.routings):
            routed = layer(x, padding=padding if index == 0 else None, return_coefficients=return_coefficients)
            x, coefficients[f"routings.{index}"] = routed.poses.squeeze(2), routed.coefficients
        return ModelOutput(x.squeeze(2), None, None, coefficients if return_coefficients else None)

    def credits(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """What each token at each depth adds to each class [b, tokens, depth, classes]: see `cr.layers.credit`."""
        coefficients = self.forward(hidden, return_coefficients=True, mask=mask).coefficients
        assert coefficients is not None
        return credit(list(coefficients.values())).unflatten(1, hidden.shape[1:3])


@register_model(small={"depth": 3, "width": 12, "hidden": (6, 4), "num_classes": 3})
def vector_routing_head(**options: Any) -> VectorRoutingHead:
    """Vector routing of hidden states: 5,068,422 parameters for 25 depths of 1024 and 5 classes (Heinsen 2022)."""
    return VectorRoutingHead(**options)


@register_model(small={"depth": 3, "width": 12, "hidden": (6, 4), "num_classes": 3})
def vector_routing_head_minilm(**options: Any) -> VectorRoutingHead:
    """The same for MiniLM, 7 depths of 384: 915,078 parameters for 5 classes."""
    return VectorRoutingHead(**{"depth": 7, "width": 384, **options})
