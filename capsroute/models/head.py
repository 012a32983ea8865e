"""Read-out of a frozen encoder: routing, vector routing or pooling of its map, its tokens, or tokens at all depths; and
vector routing of a transformer's hidden states at all depths as a model (Heinsen 2022, section 4)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsroute.form.dispatch import autocast_is_on
from capsroute.layers import CapsuleLinear, CapsuleStack, Pose, Router, VectorRouting, credit, make_router, parse_pose
from capsroute.models.base import ModelOutput, coefficients_of
from capsroute.models.class_scores import ClassScores
from capsroute.models.heinsen import part_capsules
from capsroute.models.heinsen_text import TextModel
from capsroute.models.registry import register_model
from capsroute.models.tokens import Pooling, as_weights, make_pooling, masked
from capsroute.naming import make_named
from capsroute.routing.checks import check_at_least


class VectorRoutings(nn.ModuleList):
    """Vector routing of any number of vectors [b,i,width], layer upon layer -> `hidden` vectors each -> class scores.

    Coefficients are the credits phi of each layer.
    """

    name = "vector"  # what `routing=` of a head calls it

    def __init__(self, width: int, hidden: Sequence[int], num_classes: int, iterations: int = 2):
        counts = [None, *hidden]
        layers = [VectorRouting(a, b, width, width, iterations) for a, b in zip(counts, hidden)]
        super().__init__([*layers, VectorRouting(counts[-1], num_classes, width, 1, iterations)])

    def forward(self, x: Tensor, padding: Tensor | None, return_coefficients: bool) -> ModelOutput:
        coefficients: dict[str, Tensor] = {}
        for index, layer in enumerate(self):
            routed = layer(x, padding=padding if index == 0 else None, return_coefficients=return_coefficients)
            x, coefficients[f"routings.{index}"] = routed.poses.squeeze(2), routed.coefficients
        return ModelOutput(x.squeeze(2), None, None, coefficients if return_coefficients else None)


# Routings that read tokens themselves; all others share out capsules that are made of them.
_OF_TOKENS = {VectorRoutings.name: VectorRoutings}


class RoutingHead(nn.Module):
    """What an encoder gives -> class scores, for any number of positions or tokens.

    Features are a map [b,c,h,w] (a CNN), tokens [b,n,c] (a ViT), tokens at `depths` depths [b,n,depths,c] or a list of
    so many [b,n,c], or the output of a Hugging Face encoder, of which the last hidden state is read, or with `depths`
    all of them. `mask` [b,n] leaves padding out.

    `routing` is the name of any routing: each token becomes `capsules` capsules by LayerNorm and a linear map, which
    share their transforms and are routed to the classes, over `parts` capsules where that is given. "vector" is
    `cr.layers.VectorRouting` of the tokens themselves, over `parts` vectors in each of two layers (64 unless given).
    Algorithms that sum up all votes at full weight (max-min, self-attention) get poses that are divided by the root of
    their number, so that the squash does not start saturated where tokens are many.
    `pooling` reads out without routing, and a LayerNorm and a linear layer follow: "mean", "cls", "attention"
    (AbMILP), "simpool", "efficient_probing", "latent_attention", or "slots".

    >>> import torch, capsroute as cr
    >>> head = cr.models.RoutingHead(in_features=512, num_classes=10)
    >>> head(torch.randn(2, 512, 7, 7)).scores.shape, head(torch.randn(2, 30, 512)).scores.shape
    (torch.Size([2, 10]), torch.Size([2, 10]))
    >>> vector = cr.models.RoutingHead(64, 10, routing="vector", depths=3)
    >>> vector(torch.randn(2, 30, 3, 64), mask=torch.arange(30).expand(2, -1) < 20).scores.shape
    torch.Size([2, 10])
    >>> cr.models.RoutingHead(64, 10, pooling="efficient_probing")(torch.randn(2, 30, 64)).scores.shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        capsules: int = 4,
        pose: Pose = (4, 4),
        parts: int | None = None,
        routing: str | dict | Router = "heinsen",
        std: float | None = None,
        backend: str = "auto",
        pooling: str | dict | None = None,
        depths: int | None = None,
    ):
        super().__init__()
        sizes = {"in_features": in_features, "num_classes": num_classes, "capsules": capsules}
        sizes |= {name: size for name, size in (("parts", parts), ("depths", depths)) if size is not None}
        for name, size in sizes.items():
            check_at_least(name, size, 1)
        self.in_features, self.num_capsules, self.depths = in_features, capsules, depths
        self.pool: Pooling | None = None
        self.routings: VectorRoutings | None = None
        self.scores: nn.Linear | None = None
        self.score_kind, self.default_loss = "logit", "cross_entropy"
        if depths is not None:
            self.depth_scale = nn.Parameter(torch.ones(depths, in_features))
            self.depth_shift = nn.Parameter(torch.zeros(depths, in_features))
        if pooling is not None:
            self.pool = make_pooling(pooling, in_features, depths or 1)
            self.norm = nn.LayerNorm(self.pool.out_features)
            self.classifier = nn.Linear(self.pool.out_features, num_classes)
            return
        if (routing.get("name") if isinstance(routing, dict) else routing) in _OF_TOKENS:
            widths = (in_features, (parts or 64,) * 2, num_classes)
            self.routings = make_named("routing", _OF_TOKENS, routing, *widths)  # type: ignore[arg-type]
            return
        router = make_router(routing)
        self.pose = parse_pose("pose", pose)
        numbers = self.pose[0] * self.pose[1]
        self.norm = nn.LayerNorm(in_features)
        self.poses = nn.Linear(in_features, capsules * numbers)
        self.scores = None if router.score_kind is None else nn.Linear(in_features, capsules)
        bias = router.score_kind is not None
        self.capsules = (
            CapsuleStack([CapsuleLinear(None, num_classes, pose, pose, router, bias, std, backend)])
            if parts is None
            else part_capsules(parts, num_classes, pose, pose, router, std, backend)
        )
        self.class_scores = ClassScores(router, numbers)
        self.score_kind, self.default_loss = self.class_scores.kind, self.class_scores.loss

    undecayed = ("depth_scale", "depth_shift")

    def forward(self, features: Any, mask: Tensor | None = None, return_coefficients: bool = False) -> ModelOutput:
        tokens, mask = self._tokens(features, mask)
        if self.pool is not None:
            return self._pooled(tokens, mask, return_coefficients)
        if self.routings is not None:
            return self._vectors(tokens, mask, return_coefficients)
        tokens = self.norm(tokens)
        poses = self.poses(tokens).unflatten(2, (self.num_capsules, *self.pose)).flatten(1, 2)  # [b, n*capsules, a, k]
        router = self.capsules.routed_layers()[0].routing
        scores = None
        if self.scores is not None:
            scores = self.scores(tokens).flatten(1)
            scores = scores.sigmoid() if router.score_kind == "probability" else scores
        if mask is not None:
            mask = mask.repeat_interleave(self.num_capsules, 1)
        if router.sums_votes:
            there = None if mask is None else mask.to(poses.dtype).sum(1).clamp_min(1).view(-1, 1, 1, 1)
            poses = poses / (poses.shape[1] if there is None else there) ** 0.5
        capsules = masked(router, poses, scores, mask)
        routed = self.capsules.route(capsules.poses, capsules.scores, return_coefficients)
        names = [f"capsules.layers.{n}" for n in range(len(routed))]
        coefficients = coefficients_of(names, routed) if return_coefficients else None
        return ModelOutput(self.class_scores(routed[-1]), routed[-1].poses, None, coefficients, routed[-1].variances)

    def credits(self, features: Any, mask: Tensor | None = None) -> Tensor:
        """Under vector routing, what each token, at each depth, adds to each class: [b,i,classes]."""
        if self.routings is None:
            raise ValueError("routing: only routing='vector' has credits that multiply over layers")
        tokens, mask = self._tokens(features, mask)
        found = self._vectors(tokens, mask, True).coefficients
        assert found is not None
        return credit(list(found.values()))

    def _pooled(self, tokens: Tensor, mask: Tensor | None, asked: bool) -> ModelOutput:
        assert self.pool is not None
        pooled, weights = self.pool(tokens, mask)
        scores = self.classifier(self.norm(pooled.to(tokens.dtype)))
        return ModelOutput(scores, None, None, {"pool": weights} if asked else None)

    def _vectors(self, tokens: Tensor, mask: Tensor | None, asked: bool) -> ModelOutput:
        assert self.routings is not None
        x = tokens if self.depths is not None else F.layer_norm(tokens, (self.in_features,))
        return self.routings(x, mask, asked)

    def _tokens(self, features: Any, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Tokens [b,n,c], or those of all depths [b,n*depths,c], and their mask.

        Whatever stands in the padding, even NaN, becomes zero here, so that it meets no sum and no gradient.
        """
        tokens = _given(features, self.depths)
        c, depths = self.in_features, self.depths
        if depths is None:
            shape = list(tokens.shape)
            tokens = tokens.flatten(2).mT if tokens.dim() == 4 else tokens
            if tokens.dim() != 3 or tokens.shape[2] != c:
                raise ValueError(f"features: expected [b,{c},h,w] or [b,n,{c}], got {shape}")
            self._check_type(tokens)
            _check_mask(mask, tokens)
            return tokens if mask is None else torch.where(mask.bool().unsqueeze(2), tokens, 0.0), mask
        if tokens.dim() != 4 or tuple(tokens.shape[2:]) != (depths, c):
            raise ValueError(
                f"features: expected [b,n,{depths},{c}], or {depths} of [b,n,{c}], got {list(tokens.shape)}"
            )
        _check_mask(mask, tokens)
        if mask is not None:
            tokens = torch.where(mask.bool()[:, :, None, None], tokens, 0.0)
            mask = mask.unsqueeze(2).expand(tokens.shape[:3]).flatten(1)
        return (F.layer_norm(tokens, (c,)) * self.depth_scale + self.depth_shift).flatten(1, 2), mask

    def _check_type(self, tokens: Tensor) -> None:
        """Of a type that one of the head's own parameters has: a frozen encoder is often in half precision."""
        own = {parameter.dtype for parameter in self.parameters()}
        casts = autocast_is_on(tokens.device) and tokens.is_floating_point() and tokens.dtype != torch.float64
        if own and tokens.dtype not in own and not casts:
            expected = " or ".join(sorted(map(str, own)))
            advice = "cast them, or use autocast"
            raise ValueError(f"features: expected {expected}, as the head is, got {tokens.dtype}; {advice}")


def _given(features: Any, depths: int | None) -> Tensor:
    """A tensor, of one, of several, or of the output of an encoder."""
    if isinstance(features, Tensor):
        return features
    if not isinstance(features, (list, tuple)) or hasattr(features, "last_hidden_state"):
        found = getattr(features, "last_hidden_state" if depths is None else "hidden_states", None)
        if found is None:
            wanted = "last_hidden_state" if depths is None else "hidden_states; call it with output_hidden_states=True"
            raise ValueError(f"features: expected a tensor, or an output with {wanted}, got {type(features).__name__}")
        features = found
    if isinstance(features, Sequence) and not isinstance(features, Tensor):
        if not features or not all(isinstance(part, Tensor) for part in features):
            raise ValueError("features: expected tensors [b,n,c], one for each depth")
        return torch.stack(list(features), 2)
    return features


def _check_mask(mask: Tensor | None, tokens: Tensor) -> None:
    if mask is not None and mask.shape != tokens.shape[:2]:
        raise ValueError(f"mask: expected [b,n] = {list(tokens.shape[:2])}, got {list(mask.shape)}")
    if mask is not None:
        as_weights(mask, tokens.dtype)


class VectorRoutingHead(TextModel):
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

    def __init__(
        self,
        depth: int = 25,
        width: int = 1024,
        num_classes: int = 5,
        hidden: Sequence[int] = (64, 64),
        iterations: int = 2,
    ):
        super().__init__(depth, width, num_classes)
        self.W, self.B = nn.Parameter(torch.ones(depth, width)), nn.Parameter(torch.zeros(depth, width))
        self.routings = VectorRoutings(width, hidden, num_classes, iterations)

    undecayed = ("W", "B")

    def read(self, hidden: Tensor, mask: Tensor | None, return_coefficients: bool) -> ModelOutput:
        x = (F.layer_norm(hidden, hidden.shape[3:]) * self.W + self.B).flatten(1, 2)  # [b, tokens*depth, d]
        padding = None
        if mask is not None:
            padding = as_weights(mask, x.dtype).unsqueeze(2).expand(hidden.shape[:3]).flatten(1)  # [b, tokens*depth]
        return self.routings(x, padding, return_coefficients)

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
