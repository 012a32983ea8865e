"""Tokens of a frozen encoder: pooling, what people use instead of routing, and slots; and tokens that are only padding,
how each routing is told to leave them out.

A pooling takes tokens [b,n,c] and a mask [b,n] (None: all are there) and gives features [b,f] with the weights [b,n,q]
that made them. A sample without tokens has features of zero.
"""

import torch
from torch import Tensor, nn

from capsroute.form import statistics_dtype
from capsroute.layers import Capsules, Router, SlotAttention
from capsroute.naming import make_named
from capsroute.routing.checks import can_look


class Pooling(nn.Module):
    """Tokens [b,n,c], mask [b,n] -> features [b,out_features] and weights [b,n,q].

    Of tokens at several depths, those of one token follow each other.
    """

    depths = 1

    def __init__(self, out_features: int):
        super().__init__()
        self.out_features = out_features

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        raise NotImplementedError


def over_tokens(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax over tokens of logits [b,n,q]; tokens that are not there get nothing, half a token half as much."""
    logits = logits.to(statistics_dtype(logits))
    if mask is None:
        return logits.softmax(1)
    share = as_weights(mask, logits.dtype).unsqueeze(2)
    absent = share == 0
    nobody = absent.all(1, keepdim=True)
    weights = (logits + share.masked_fill(absent, 1.0).log()).masked_fill(absent & ~nobody, -torch.inf).softmax(1)
    return weights.masked_fill(nobody, 0.0)


class MeanPooling(Pooling):
    """The mean of the tokens."""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = over_tokens(torch.zeros_like(tokens[:, :, :1]), mask)
        return _mixed(weights, tokens), weights


class ClassToken(Pooling):
    """The first token, which many encoders keep for the whole input; where tokens come at several depths, the mean of
    its depths. (At the first depth alone it is the same for every input.)"""

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = torch.zeros_like(tokens[:, :, :1], dtype=statistics_dtype(tokens))
        weights[:, : self.depths] = 1 / self.depths
        if mask is not None:
            weights = weights * as_weights(mask, weights.dtype).unsqueeze(2)
        return _mixed(weights, tokens), weights


class AttentionPooling(Pooling):
    """AbMILP (Ilse et al. 2018): softmax over tokens of w . tanh(V h)."""

    def __init__(self, in_features: int, hidden: int = 128):
        super().__init__(in_features)
        self.score = nn.Sequential(nn.Linear(in_features, hidden), nn.Tanh(), nn.Linear(hidden, 1, bias=False))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = over_tokens(self.score(tokens), mask)
        return _mixed(weights, tokens), weights


class SimPool(Pooling):
    """SimPool (Psomas et al. 2023): one step of attention from the mean; tokens are their own values."""

    def __init__(self, in_features: int):
        super().__init__(in_features)
        self.norm = nn.LayerNorm(in_features)
        self.query, self.key = (nn.Linear(in_features, in_features, bias=False) for _ in range(2))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        mean = _mixed(over_tokens(torch.zeros_like(tokens[:, :, :1]), mask), tokens)
        query, keys = self.query(self.norm(mean)), self.key(self.norm(tokens))
        weights = over_tokens(torch.bmm(keys, query.unsqueeze(2)) * tokens.shape[2] ** -0.5, mask)
        return _mixed(weights, tokens), weights


class EfficientProbing(Pooling):
    """Efficient probing (Psomas et al. 2025): learned queries look at raw tokens; each takes its part of a map."""

    def __init__(self, in_features: int, queries: int = 32):
        super().__init__(queries * max(1, in_features // queries))
        self.queries = nn.Parameter(torch.randn(queries, in_features) * in_features**-0.5)
        self.values = nn.Linear(in_features, self.out_features)

    undecayed = ("queries",)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        weights = over_tokens(torch.matmul(tokens, self.queries.mT) * tokens.shape[2] ** -0.5, mask)  # [b, n, q]
        values = self.values(tokens).unflatten(2, (weights.shape[2], -1))  # [b, n, q, f/q]
        return torch.einsum("bnq,bnqf->bqf", weights.to(values.dtype), values).flatten(1), weights


class LatentAttention(Pooling):
    """Latent attention (NV-Embed, Lee et al. 2024): tokens look at learned latents, then the mean over tokens."""

    def __init__(self, in_features: int, latents: int = 512):
        super().__init__(in_features)
        self.keys, self.values = (nn.Parameter(torch.randn(latents, in_features) * 0.02) for _ in range(2))

    undecayed = ("keys", "values")

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        looks = (torch.matmul(tokens, self.keys.mT) * tokens.shape[2] ** -0.5).softmax(2)
        weights = over_tokens(torch.zeros_like(tokens[:, :, :1]), mask)
        return _mixed(weights, torch.matmul(looks, self.values)), weights


class SlotPooling(Pooling):
    """Slots with learned starts, side by side."""

    def __init__(self, in_features: int, slots: int = 8, features: int = 64, iterations: int = 3):
        super().__init__(slots * features)
        self.attention = SlotAttention(
            slots, features, iterations, 2 * features, in_features=in_features, start="learned"
        )

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        routed = self.attention(tokens, mask, return_coefficients=True)
        assert routed.coefficients is not None
        return routed.poses.flatten(1), routed.coefficients


def _mixed(weights: Tensor, tokens: Tensor) -> Tensor:
    """One weighted sum of tokens: weights [b,n,1], tokens [b,n,c] -> [b,c]."""
    return torch.bmm(weights.to(tokens.dtype).mT, tokens).squeeze(1)


POOLINGS: dict[str, type[Pooling]] = {
    "mean": MeanPooling,
    "cls": ClassToken,
    "attention": AttentionPooling,
    "simpool": SimPool,
    "efficient_probing": EfficientProbing,
    "latent_attention": LatentAttention,
    "slots": SlotPooling,
}


def make_pooling(pooling: str | dict, in_features: int, depths: int = 1) -> Pooling:
    """A pooling by name, or from `{"name": ..., option: value}`, of tokens that come at so many depths each.

    >>> import torch
    >>> from capsroute.models.tokens import make_pooling
    >>> features, weights = make_pooling({"name": "efficient_probing", "queries": 4}, 16)(torch.randn(2, 9, 16))
    >>> features.shape, weights.sum(1).allclose(torch.ones(2, 4))
    (torch.Size([2, 16]), True)
    """
    pool = make_named("pooling", POOLINGS, pooling, in_features)
    pool.depths = depths
    return pool


def masked(router: Router, poses: Tensor, scores: Tensor | None, mask: Tensor | None) -> Capsules:
    """Capsules [b,i,a,k] that count as much as `mask` [b,i] says: 1 or true fully, 0 or false as if not there.

    Where the algorithm can leave a child out by its score, the probability that the score stands for is multiplied by
    the mask: a child without a score gets the logit of its mask, as in Heinsen 2019. Else the pose is multiplied: a
    child whose votes are zero adds nothing to any parent, unless children share one unit of weight among themselves.

    >>> import torch
    >>> from capsroute.layers import make_router
    >>> from capsroute.models.tokens import masked
    >>> masked(make_router("heinsen"), torch.ones(1, 3, 1, 4), None, torch.tensor([[1.0, 0.5, 0.0]])).scores
    tensor([[inf, 0., -inf]])
    """
    if mask is None:
        return Capsules(poses, scores)
    if mask.shape != poses.shape[:2]:
        raise ValueError(f"mask: expected [b,i] = {list(poses.shape[:2])}, got {list(mask.shape)}")
    if router.mask_kind is None and router.declared("competes_over") == "children":
        raise ValueError(f"mask: routing {router.name!r} weighs children against each other and cannot leave one out")
    mask = as_weights(mask, poses.dtype)
    # The pose too, so that whatever stands in the padding, even NaN, meets no sum.
    poses = torch.where(mask[:, :, None, None] > 0, poses, 0.0)
    if router.mask_kind is None:
        return Capsules(poses * mask[:, :, None, None])
    always, never = (torch.inf, -torch.inf) if router.mask_kind == "logit" else (1.0, 0.0)
    present = torch.full_like(poses[:, :, 0, 0], always) if scores is None else scores
    absent = torch.where(mask == 0, never, _lessened(present, mask, router))
    return Capsules(poses, torch.where(mask == 1, present, absent))


def as_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask of bools, whole or other numbers as numbers in [0, 1]; a ValueError for others, where they can be seen."""
    weights = mask.to(dtype)
    if can_look(weights) and not bool(((weights >= 0) & (weights <= 1)).all()):
        raise ValueError(f"mask: expected numbers in [0, 1], got {weights.min().item()} to {weights.max().item()}")
    return weights


def _lessened(scores: Tensor, mask: Tensor, router: Router) -> Tensor:
    """Scores whose probability is multiplied by a mask between 0 and 1."""
    if router.mask_kind != "logit":
        return scores * mask
    # Elsewhere than between them the result is not taken; one half keeps its gradient finite.
    between = torch.where((mask > 0) & (mask < 1), mask, 0.5)
    return torch.logit(between * scores.sigmoid(), eps=torch.finfo(mask.dtype).tiny)
