"""Heinsen's network for text: a transformer's hidden states routed as capsules (Heinsen 2019, figure 5), with a model
of the `transformers` library below it (extra `text`; section 4); and classifiers of hidden states that do not route."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from capsroute.extras import naming_extras
from capsroute.layers import Pose, Router, make_router, parse_pose
from capsroute.models.base import CapsuleModel, ModelOutput, coefficients_of
from capsroute.models.class_scores import ClassScores
from capsroute.models.heinsen import part_capsules
from capsroute.models.registry import register_model
from capsroute.models.tokens import as_weights, masked, over_tokens
from capsroute.routing.checks import can_look
from capsroute.routing.normalise import or_one


class TextModel(CapsuleModel):
    """A model of hidden states of texts [b, tokens, depth, width]; `mask` [b, tokens] has 1 for a token, 0 for padding.

    A subclass reads them in `read`.
    """

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
        depth, width = self.input_shape[1:]
        if hidden.dim() != 4 or tuple(hidden.shape[2:]) != (depth, width):
            raise ValueError(f"hidden: expected [b,tokens,{depth},{width}], got {list(hidden.shape)}")
        if mask is not None and mask.shape != hidden.shape[:2]:
            raise ValueError(f"mask: expected [b,tokens] = {list(hidden.shape[:2])}, got {list(mask.shape)}")
        if mask is not None:  # whatever stands in the padding, even NaN, meets no sum and no gradient
            hidden = torch.where((mask > 0)[:, :, None, None], hidden, 0.0)
        return self.read(hidden, mask, return_coefficients)

    def read(self, hidden: Tensor, mask: Tensor | None, return_coefficients: bool) -> ModelOutput:
        """What `forward` makes of hidden states and a mask that fit."""
        raise NotImplementedError


class HeinsenText(TextModel):
    """Hidden states of every token at every depth -> one capsule each -> parts -> labels.

    hidden [b, tokens, depth, width], mask [b, tokens] with 1 for a token and 0 for padding. `norm_first=True` is the
    paper's order, LayerNorm, affine, Swish; False is that of the authors' code, affine, Swish, LayerNorm. Every token
    counts fully, as in the paper, unless `learned_scores` lets the features say how much, as in the network for images.

    >>> import torch, capsroute as cr
    >>> model = cr.models.HeinsenText(depth=3, width=32, num_classes=2)
    >>> mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    >>> model(torch.randn(2, 5, 3, 32), mask=mask).scores.shape
    torch.Size([2, 2])
    """

    def __init__(
        self,
        depth: int = 37,
        width: int = 1280,
        num_classes: int = 5,
        features: int = 64,
        parts: int = 64,
        pose: Pose = 2,
        norm_first: bool = True,
        learned_scores: bool = False,
        routing: str | dict | Router = "heinsen",
        std: float | None = None,
        backend: str = "auto",
    ):
        super().__init__(depth, width, num_classes)
        router = make_router(routing)
        rows, columns = parse_pose("pose", pose)
        if rows != 1:
            raise ValueError(f"pose: expected a vector pose, for hidden states are vectors, got {pose!r}")
        self.depth_embedding = nn.Parameter(torch.zeros(depth, width))
        self.detect = feature_detector(width, features, norm_first)
        if learned_scores and router.score_kind is None:
            raise ValueError(f"learned_scores: routing {router.name!r} takes no scores")
        self.scores = nn.Linear(features, 1) if learned_scores else None
        self.capsules = part_capsules(parts, num_classes, features, pose, router, std, backend)
        self.class_scores = ClassScores(router, columns)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss

    def read(self, hidden: Tensor, mask: Tensor | None, return_coefficients: bool) -> ModelOutput:
        poses = self.detect(hidden + self.depth_embedding).flatten(1, 2).unsqueeze(2)  # [b, tokens*depth, 1, k]
        router = self.capsules.routed_layers()[0].routing
        scores = None
        if self.scores is not None:
            scores = self.scores(poses).flatten(1)  # [b, tokens*depth]
            scores = scores.sigmoid() if router.score_kind == "probability" else scores
        if mask is not None:
            mask = mask.unsqueeze(2).expand(hidden.shape[:3]).flatten(1)  # [b, tokens*depth]
        capsules = masked(router, poses, scores, mask)
        routed = self.capsules.route(capsules.poses, capsules.scores, return_coefficients)
        coefficients = coefficients_of(self.routed_layers(), routed) if return_coefficients else None
        return ModelOutput(self.class_scores(routed[-1]), routed[-1].poses, None, coefficients, routed[-1].variances)


def feature_detector(width: int, features: int, norm_first: bool) -> nn.Sequential:
    """Hidden states -> features, one affine map for all tokens and depths (Heinsen 2019, figure 5c)."""
    affine = nn.Linear(width, features)
    nn.init.kaiming_normal_(affine.weight)
    nn.init.zeros_(affine.bias)
    if norm_first:
        return nn.Sequential(nn.LayerNorm(width), affine, nn.SiLU())
    return nn.Sequential(affine, nn.SiLU(), nn.LayerNorm(features))


@register_model(small={"depth": 3, "width": 12, "features": 8, "parts": 6, "num_classes": 3})
def heinsen_sst(**options: Any) -> HeinsenText:
    """Heinsen 2019's routing of GPT-2 large's hidden states for SST: 142,912 parameters for 5 labels, 141,376 for 2."""
    return HeinsenText(**options)


class PooledText(TextModel):
    """Hidden states [b, tokens, depth, width] and their mask [b, tokens] -> one vector per text -> logits."""

    def read(self, hidden: Tensor, mask: Tensor | None, return_coefficients: bool) -> ModelOutput:
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
        # Divided before the sum, which would be more than float16 holds.
        weights = mask / or_one(mask.sum(1, keepdim=True))
        return self.layers((hidden * weights[:, :, None, None]).sum(1))  # of [b, depth, width]


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
        there = mask.repeat_interleave(hidden.shape[2], 1)  # [b, tokens*depth]
        weights = over_tokens(self.queries(features), there).to(features.dtype)  # [b, tokens*depth, heads]
        return self.classifier((weights.mT @ features).flatten(1))


@register_model(small={"depth": 3, "width": 12, "num_classes": 3})
def heinsen_sst_mean_pooling(**options: Any) -> MeanPooledText:
    """Mean pooling of a transformer's hidden states and a linear layer, to compare `heinsen_sst` with."""
    return MeanPooledText(**options)


@register_model(small={"depth": 3, "width": 12, "features": 8, "heads": 4, "num_classes": 3})
def heinsen_sst_attention_pooling(**options: Any) -> AttentionPooledText:
    """Attention pooling of a transformer's hidden states at all depths, to compare `heinsen_sst` with."""
    return AttentionPooledText(**options)


class TransformerClassifier(nn.Module):
    """Token ids -> the transformer's hidden states at every depth -> routed to labels.

    `transformer` is a model of `transformers`, or the name of a pretrained one. `frozen=True` trains the routing only.
    `end_of_text=True` puts the transformer's end-of-text token after the last token of each text, as the authors of
    Heinsen 2019 do in their code; the paper does not say so.
    Further options are those of `HeinsenText`; save the `head` with `cr.save_model`.

    >>> import torch, capsroute as cr
    >>> from transformers import GPT2Config, GPT2Model  # doctest: +SKIP
    >>> model = cr.models.TransformerClassifier("gpt2-large", num_classes=5)  # doctest: +SKIP
    >>> tiny = GPT2Model(GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=50))  # doctest: +SKIP
    >>> cr.models.TransformerClassifier(tiny, num_classes=5)(torch.tensor([[7, 8, 9]])).scores.shape  # doctest: +SKIP
    torch.Size([1, 5])
    """

    def __init__(
        self,
        transformer: str | nn.Module,
        num_classes: int,
        frozen: bool = True,
        end_of_text: bool = False,
        **options: Any,
    ):
        super().__init__()
        self.transformer: Any = _pretrained(transformer) if isinstance(transformer, str) else transformer
        config: Any = self.transformer.config
        # Every layer's output, and the embeddings that go into the first.
        sizes = {"depth": config.num_hidden_layers + 1, "width": config.hidden_size, "num_classes": num_classes}
        self.head = HeinsenText(**sizes, **options)
        self.frozen = frozen
        self.end_of_text: int | None = config.eos_token_id if end_of_text else None
        if end_of_text and self.end_of_text is None:
            raise ValueError("end_of_text: this transformer's config names no end-of-text token")
        if frozen:
            self.transformer.requires_grad_(False)
        self.train(self.training)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, return_coefficients: bool = False
    ) -> ModelOutput:
        if self.end_of_text is not None:
            input_ids, attention_mask = append_token(input_ids, attention_mask, self.end_of_text)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            output = self.transformer(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
        hidden = torch.stack(output.hidden_states, 2)  # [b, tokens, depth, width]
        return self.head(hidden, return_coefficients=return_coefficients, mask=attention_mask)

    def train(self, mode: bool = True) -> TransformerClassifier:
        """As for any module, but a frozen transformer stays in evaluation mode: no dropout."""
        super().train(mode)
        if self.frozen:
            self.transformer.eval()
        return self


def append_token(ids: Tensor, mask: Tensor | None, token: int) -> tuple[Tensor, Tensor]:
    """Token ids [b,t] that are padded at their end, with one more token after the last of each text, and their mask.

    >>> import torch
    >>> from capsroute.models.heinsen_text import append_token
    >>> append_token(torch.tensor([[5, 6], [7, 0]]), torch.tensor([[1, 1], [1, 0]]), token=9)
    (tensor([[5, 6, 9],
            [7, 9, 0]]), tensor([[1, 1, 1],
            [1, 1, 0]]))
    """
    mask = torch.ones_like(ids) if mask is None else mask
    lengths = mask.sum(1, keepdim=True).long()  # [b, 1]
    if ids.shape[1] > 1 and can_look(mask) and bool((mask[:, 1:] > mask[:, :-1]).any()):
        raise ValueError("attention_mask: expected padding at the end of each text, found some before its tokens")
    places = torch.arange(ids.shape[1] + 1, device=ids.device)
    longer = torch.cat([ids, torch.zeros_like(ids[:, :1])], 1)
    return torch.where(places == lengths, token, longer), (places <= lengths).to(mask.dtype)


def _pretrained(name: str) -> nn.Module:
    with naming_extras():
        from transformers import AutoModel
    # Never a pickle: a transformer that has no safetensors file is refused.
    return AutoModel.from_pretrained(name, use_safetensors=True)
