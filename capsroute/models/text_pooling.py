"""Classifiers of a transformer's hidden states that do not route: what `HeinsenText` is compared with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.models.base import CapsuleModel, ModelOutput
from capsroute.models.masking import as_weights
from capsroute.models.registry import register_model
from capsroute.models.text import check_hidden, feature_detector

__all__ = ["AttentionPooledText", "MeanPooledText"]


class PooledText(CapsuleModel):
    """Hidden states [b, tokens, depth, width] and their mask [b, tokens] -> one vector a text -> logits."""

    score_kind = "logit"
    default_loss = "cross_entropy"

    def __init__(self, depth: int, width: int, num_classes: int):
        super().__init__(num_classes)
        self.input_shape = (None, depth, width)

    def forward(
        self,
        hidden: Tensor,
        labels: Tensor | None = None,
        return_coefficients: bool = False,
        mask: Tensor | None = None,
    ) -> ModelOutput:
        check_hidden(hidden, mask, self.input_shape)
        if mask is None:
            mask = hidden.new_ones(hidden.shape[:2])
        scores = self.classify(hidden, as_weights(mask, hidden.dtype))
        return ModelOutput(scores, coefficients={} if return_coefficients else None)

    def classify(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Logits [b, classes] from hidden states and how much each token counts, [b, tokens] in [0, 1]."""
        raise NotImplementedError


class MeanPooledText(PooledText):
    """The mean over the tokens at every depth, LayerNorm, and a linear layer.

    >>> import torch, capsroute as cr
    >>> model = cr.models.MeanPooledText(depth=3, width=32, num_classes=2)
    >>> model(torch.randn(2, 5, 3, 32), mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])).scores.shape
    torch.Size([2, 2])
    """

    def __init__(self, depth: int = 37, width: int = 1280, num_classes: int = 5):
        super().__init__(depth, width, num_classes)
        self.layers = nn.Sequential(nn.LayerNorm(width), nn.Flatten(), nn.Linear(depth * width, num_classes))

    def classify(self, hidden: Tensor, mask: Tensor) -> Tensor:
        weights = mask[:, :, None, None]
        total = (torch.where(weights > 0, hidden, 0.0) * weights).sum(1)  # [b, depth, width]
        count = weights.sum(1)
        return self.layers(total / torch.where(count > 0, count, 1.0))


class AttentionPooledText(PooledText):
    """Features of every token at every depth as in `HeinsenText`, pooled by learned queries, and a linear layer.

    Each of `heads` queries weighs all tokens at all depths by a softmax and takes the mean of their features.
    `norm_first` is as in `HeinsenText`.

    >>> import torch, capsroute as cr
    >>> model = cr.models.AttentionPooledText(depth=3, width=32, num_classes=2)
    >>> model(torch.randn(2, 5, 3, 32), mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])).scores.shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        depth: int = 37,
        width: int = 1280,
        num_classes: int = 5,
        features: int = 64,
        heads: int = 24,
        norm_first: bool = True,
    ):
        super().__init__(depth, width, num_classes)
        self.depth_embedding = nn.Parameter(torch.zeros(depth, width))
        self.detect = feature_detector(width, features, norm_first)
        self.queries = nn.Linear(features, heads)
        self.classifier = nn.Linear(heads * features, num_classes)

    def classify(self, hidden: Tensor, mask: Tensor) -> Tensor:
        features = self.detect(hidden + self.depth_embedding).flatten(1, 2)  # [b, tokens*depth, features]
        there = mask.repeat_interleave(hidden.shape[2], 1).unsqueeze(2)  # [b, tokens*depth, 1]
        lowest = torch.finfo(features.dtype).min  # not -inf: a text without any token must not become NaN
        # A token that counts half has half the weight that softmax would give it.
        logits = self.queries(features) + torch.where(there > 0, there, 1.0).log()
        weights = logits.masked_fill(there == 0, lowest).softmax(1)  # [b, tokens*depth, heads]
        return self.classifier((weights.mT @ torch.where(there > 0, features, 0.0)).flatten(1))


@register_model(small={"depth": 3, "width": 12, "num_classes": 3})
def heinsen_sst_mean_pooling(**options: Any) -> MeanPooledText:
    """Mean pooling of a transformer's hidden states and a linear layer, to compare `heinsen_sst` with."""
    return MeanPooledText(**options)


@register_model(small={"depth": 3, "width": 12, "features": 8, "heads": 4, "num_classes": 3})
def heinsen_sst_attention_pooling(**options: Any) -> AttentionPooledText:
    """Attention pooling of a transformer's hidden states at all depths, to compare `heinsen_sst` with."""
    return AttentionPooledText(**options)
