"""The heads that the experiments compare: a set of children -> parents, by every routing and by what is used instead.

All heads have one interface, one front (`Refine`) whose width is what makes parameters equal, and two settings each:
equal search for all is `rates x 2 settings`. Iterated routings start from the same learned gate, which is self-routing:
so `self_routing` is the start alone, and what the others add to it is agreement. Poses are small vectors; votes are
stored, since they are small and many networks are trained at once by `torch.func.vmap`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import capsroute as cr
from capsroute.form.loop.plain import MaxMin, Softmax, plain_loop
from capsroute.layers.router import VARIANCE_FLOOR
from capsroute.routing.expectation import expect_and_maximise, log_logistic, maximise
from capsroute.routing.variational_bayes import vb_routing

POSE = 16  # numbers in the pose of a parent, as in Sabour et al. 2017 and Hinton et al. 2018


class Parents(NamedTuple):
    """What a head gives: poses, and two more numbers where an algorithm has them (score, log variance), else zero."""

    poses: Tensor  # [b, j, d]
    evidence: Tensor  # [b, j, 2]


class Refine(nn.Module):
    """x + MLP(LayerNorm(x)), for each child alone."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.wide, self.back = nn.Linear(features, hidden), nn.Linear(hidden, features)
        nn.init.zeros_(self.back.weight)  # children start as they are

    def forward(self, x: Tensor) -> Tensor:
        return x + self.back(F.relu(self.wide(self.norm(x))))


class Head(nn.Module):
    """children [b,i,d], there [b,i] (1 or 0) -> Parents."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__()
        self.features, self.parents, self.setting = features, parents, setting

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        raise NotImplementedError

    def plain(self, poses: Tensor) -> Parents:
        """Parents of an algorithm that has poses alone."""
        return Parents(poses, torch.zeros_like(poses[..., :2]))


def share(there: Tensor) -> Tensor:
    """Equal shares of the children that are there: [b,i]."""
    return there / there.sum(1, keepdim=True).clamp_min(1)


class Mean(Head):
    """Deep Sets (Zaheer et al. 2017): the mean of the children, then a network of one or two hidden layers."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        hidden = features
        more = [nn.Linear(hidden, hidden), nn.ReLU()] * setting
        layers = [nn.Linear(features, hidden), nn.ReLU(), *more, nn.Linear(hidden, parents * features)]
        self.rho = nn.Sequential(*layers)

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        mean = torch.einsum("bi,bid->bd", share(there), children)
        return self.plain(self.rho(mean).unflatten(1, (self.parents, self.features)))


class Average(Head):
    """Average pooling: every parent gets the mean of all children."""

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        mean = torch.einsum("bi,bid->bd", share(there), children)
        return self.plain(mean.unsqueeze(1).expand(-1, self.parents, -1))


class Attention(nn.Module):
    """Multi-head attention of queries [b,q,d] over children [b,i,d]."""

    def __init__(self, features: int, heads: int):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(features, features) for _ in range(4))

    def forward(self, queries: Tensor, children: Tensor, there: Tensor) -> Tensor:
        q, k, v = (
            layer(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer, x in ((self.q, queries), (self.k, children), (self.v, children))
        )
        logits = q @ k.mT * q.shape[3] ** -0.5  # [b, heads, q, i]
        logits = logits.masked_fill(there[:, None, None, :] == 0, -1e9)
        return self.o((logits.softmax(3) @ v).transpose(1, 2).flatten(2))


class AttentionPooling(Head):
    """A learned query for each parent attends to the children, with one head or four."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        self.queries = nn.Parameter(torch.randn(parents, features))
        self.attention = Attention(features, (1, 4)[setting])

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        queries = self.queries.expand(len(children), -1, -1)
        return self.plain(self.attention(queries, children, there))


class SetTransformer(Head):
    """Set Transformer (Lee et al. 2019): children attend to each other, once or twice; then learned queries to them."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        self.norms = nn.ModuleList(nn.LayerNorm(features) for _ in range(1 + setting))
        self.blocks = nn.ModuleList(Attention(features, 4) for _ in range(1 + setting))
        self.refine = Refine(features, features)
        self.pool = AttentionPooling(features, parents, 1)

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        for norm, block in zip(self.norms, self.blocks):
            normed = norm(children)
            children = children + block(normed, normed, there)
        return self.pool(self.refine(children), there)


class Voting(Head):
    """What routed heads share: a transform for each parent, votes of the children that are there, and a first share.

    Transforms start equal where a gate breaks the symmetry, so that parents compete for the same votes.
    """

    gated = True

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        first = nn.init.orthogonal_(torch.empty(features, POSE))
        apart = torch.randn(parents, features, POSE) / features**0.5
        self.W = nn.Parameter(first.expand(parents, -1, -1).clone() if self.gated else apart)
        if self.gated:
            self.gate = nn.Linear(features, parents)
            nn.init.normal_(self.gate.weight, std=2 / features**0.5)
        self.lift = nn.Linear(POSE, features)

    def votes(self, children: Tensor, there: Tensor) -> cr.DenseVotes:
        votes = torch.einsum("bid,jdo->bijo", children, self.W) * there[:, :, None, None]
        return cr.DenseVotes(votes)

    def first(self, children: Tensor) -> Tensor:
        """Shares [b,i,j] to start from."""
        return self.gate(children).softmax(2)

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        routed = self.route(self.votes(children, there), children, there)
        poses = self.lift(routed.poses.squeeze(2))
        if routed.scores is None:
            return self.plain(poses)
        spread = torch.zeros_like(routed.scores) if routed.variances is None else routed.variances.log().mean((2, 3))
        return Parents(poses, torch.stack([routed.scores, spread], 2))

    def route(self, votes: cr.DenseVotes, children: Tensor, there: Tensor) -> cr.Routed:
        raise NotImplementedError


class Uniform(Voting):
    """Trained without routing: equal shares, then squash (as dynamic routing) or LayerNorm (as inverted attention)."""

    gated = False

    def route(self, votes, children, there):
        if self.setting == 0:
            return cr.uniform_routing(votes)
        c = torch.full_like(children[:, :, :1], 1 / self.parents).expand(-1, -1, self.parents)
        return cr.Routed(cr.routing.pose_layer_norm(votes.aggregate(c)), c, None, None)


class Dynamic(Voting):
    """Sabour et al. 2017, 3 or 6 iterations."""

    def route(self, votes, children, there):
        asked = (votes.agreement, votes.aggregate, self.first(children), Softmax(), (3, 6)[self.setting], False)
        return cr.Routed(*plain_loop(*asked), None, None)


class MaxMinRouting(Voting):
    """Zhao et al. 2019, 3 iterations; gradients stop before the last, as in the layer of the library, or do not."""

    def route(self, votes, children, there):
        first = self.parents * self.first(children)  # one on average
        asked = (votes.agreement, votes.aggregate, first, MaxMin(0.0, 1.0), 3, self.setting == 0)
        return cr.Routed(*plain_loop(*asked), None, None)


class Pooling(Voting):
    """Zhao & Huang 2019, 3 iterations, sharpness 1 or 8: parents do not compete, children do."""

    gated = False

    def route(self, votes, children, there):
        return cr.pooling_routing(votes, 3, (1.0, 8.0)[self.setting], weights=there)


class InvertedAttention(Voting):
    """Tsai et al. 2020, 3 or 5 iterations, agreement unscaled."""

    def route(self, votes, children, there):
        poses = cr.routing.pose_layer_norm(votes.aggregate(self.first(children)))
        for _ in range((3, 5)[self.setting] - 1):
            routed = cr.inverted_attention_routing(votes, poses)
            poses = routed.poses
        return routed


class Gaussian(Voting):
    """Betas of a Gaussian for each parent."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        self.use, self.other = nn.Parameter(torch.zeros(parents)), nn.Parameter(torch.zeros(parents))


class EM(Gaussian):
    """Hinton et al. 2018, 3 or 6 iterations."""

    def route(self, votes, children, there):
        routed = cr.em_routing(
            votes, there, self.use, self.other, (3, 6)[self.setting],
            variance_floor=VARIANCE_FLOOR, first=self.first(children),
        )  # fmt: skip
        # The temperature keeps activations near one half: their logits are what tells parents apart.
        return routed._replace(scores=torch.logit(routed.scores, 1e-6))


class VB(Gaussian):
    """Ribeiro et al. 2020, 3 or 6 iterations."""

    def route(self, votes, children, there):
        return vb_routing(votes, there, self.use, self.other, (3, 6)[self.setting], first=self.first(children))


class Heinsen(Gaussian):
    """Heinsen 2019 with betas that mean the same for any number of children, 3 or 6 iterations, from a gate."""

    def route(self, votes, children, there):
        eps, J = VARIANCE_FLOOR, self.parents
        use, ignore = J * self.use[None], J / (J - 1) * self.other[None]
        total = there.sum(1, keepdim=True).clamp_min(1)
        ignored = total * ignore
        found = maximise(votes, self.first(children), there, use + ignore, eps)
        for _ in range((3, 6)[self.setting] - 1):
            prior = log_logistic((found.benefits - ignored) / total)
            found = expect_and_maximise(votes, found.means, found.variances + eps, prior, there, use + ignore, eps)
        return cr.Routed(found.means, found.R, (found.benefits - ignored) / total, found.variances + eps)


class SelfRouting(Voting):
    """Hahn et al. 2019: each child decides alone, by a gate of one layer or of two."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        if setting:
            self.gate = nn.Sequential(nn.Linear(features, features), nn.ReLU(), self.gate)

    def route(self, votes, children, there):
        return cr.self_routing(votes, there, self.gate(children))


class SelfAttention(Voting):
    """Mazzia et al. 2021: votes attend to their own sum, once; children as they are, or weaker the more there are."""

    gated = False

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        self.prior = nn.Parameter(torch.zeros(1, parents))

    def votes(self, children: Tensor, there: Tensor) -> cr.DenseVotes:
        if self.setting:
            there = there / there.sum(1, keepdim=True).clamp_min(1).sqrt()
        return super().votes(children, there)

    def route(self, votes, children, there):
        return cr.self_attention_routing(votes, self.prior)


class Slots(Head):
    """Locatello et al. 2020 with a learned start for each slot, 3 or 6 iterations."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        self.layer = cr.layers.SlotAttention(parents, features, (3, 6)[setting], hidden=None, start="learned")
        nn.init.normal_(self.layer.first)

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        layer = self.layer
        normed = layer.norm_inputs(children)
        keys, values, slots = layer.to_keys(normed), layer.to_values(normed), layer.first_slots(len(children))
        for _ in range(layer.iterations):
            queries = layer.to_queries(layer.norm_slots(slots))
            updates = cr.slot_routing(keys, values, queries, mask=there).poses.squeeze(2)
            slots = gru(layer.update, updates, slots)
        return self.plain(slots)


def gru(cell: nn.GRUCell, x: Tensor, h: Tensor) -> Tensor:
    """What the cell does, in parts that torch.func has rules for: its own kernel has none."""
    a, b = (
        F.linear(x, cell.weight_ih, cell.bias_ih).chunk(3, -1),
        F.linear(h, cell.weight_hh, cell.bias_hh).chunk(3, -1),
    )
    reset, update = torch.sigmoid(a[0] + b[0]), torch.sigmoid(a[1] + b[1])
    return (1 - update) * torch.tanh(a[2] + reset * b[2]) + update * h


class Vectors(Head):
    """Vector routing, Heinsen 2022, 2 or 4 iterations."""

    def __init__(self, features: int, parents: int, setting: int):
        super().__init__(features, parents, setting)
        self.layer = cr.layers.VectorRouting(None, parents, features, features, (2, 4)[setting])

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        return self.plain(self.layer(children, padding=there).poses.squeeze(2))


CONTROLS: dict[str, type[Head]] = {
    "mean": Mean,
    "average": Average,
    "uniform": Uniform,
    "attention_pooling": AttentionPooling,
    "set_transformer": SetTransformer,
}
ROUTINGS: dict[str, type[Head]] = {
    "dynamic": Dynamic,
    "max_min": MaxMinRouting,
    "pooling": Pooling,
    "inverted_attention": InvertedAttention,
    "em": EM,
    "heinsen": Heinsen,
    "vb": VB,
    "self_routing": SelfRouting,
    "self_attention": SelfAttention,
    "slots": Slots,
    "vectors": Vectors,
}
HEADS = CONTROLS | ROUTINGS


def count(module: nn.Module) -> int:
    """Numbers that are learned."""
    return sum(parameter.numel() for parameter in module.parameters())


class Refined(nn.Module):
    """A refinement of each child and then a head, as wide as `budget` parameters allow."""

    def __init__(self, name: str, features: int, parents: int, setting: int, budget: int):
        super().__init__()
        self.head = HEADS[name](features, parents, setting)
        fixed = count(self.head) + 3 * features  # with the norm and the last bias of the refinement
        hidden = (budget - fixed) // (2 * features + 1)
        if hidden < 8:
            raise ValueError(f"budget: {name} alone has {fixed} parameters, too many for {budget}")
        self.refine = Refine(features, hidden)

    def forward(self, children: Tensor, there: Tensor) -> Parents:
        return self.head(self.refine(children), there)
