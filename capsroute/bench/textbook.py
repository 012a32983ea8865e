"""The textbook form of every routing algorithm: votes V[b,i,j,a,o] are made once, stored, and read in every iteration.

This is what papers print and what most code does. It is here to be measured against, and it is correct: the tests
compare it with `capsroute.routing`. Sums over votes are written in two `WAYS`: as einsums, which become batched
products, and as products that are summed, which torch.compile fuses with what is around them (three times faster for
a hundred parents, with a fifth of the memory). Whoever compares compiled forms takes the better one.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

WAYS = ("einsums", "sums")


def votes(u: Tensor, W: Tensor) -> Tensor:
    """u [b,i,a,k], W [i,j,k,o] or [1,j,k,o] -> V [b,i,j,a,o]."""
    if W.shape[0] == 1:
        return torch.einsum("biak,jko->bijao", u, W[0])
    return torch.einsum("biak,ijko->bijao", u, W)


def unfolded(maps: Tensor, kernel: int) -> Tensor:
    """Maps [b,n,a,k,h,w] -> the children that a window sees at each position [b * positions, n * kernel^2, a, k]."""
    windows = maps.unfold(4, kernel, 1).unfold(5, kernel, 1)  # [b, n, a, k, y, x, kernel, kernel]
    return windows.permute(0, 4, 5, 1, 6, 7, 2, 3).flatten(3, 5).flatten(0, 2)


def weighted(c: Tensor, V: Tensor, way: str) -> Tensor:
    """Sum over children: c [b,i,j], V [b,i,j,a,o] -> [b,j,a,o]."""
    return torch.einsum("bij,bijao->bjao", c, V) if way == "einsums" else (c[..., None, None] * V).sum(1)


def agreed(V: Tensor, q: Tensor, way: str) -> Tensor:
    """Dot products of votes and poses: V [b,i,j,a,o], q [b,j,a,o] -> [b,i,j]."""
    return torch.einsum("bijao,bjao->bij", V, q) if way == "einsums" else (V * q[:, None]).sum((3, 4))


def squash(s: Tensor) -> Tensor:
    square = (s * s).sum((2, 3), keepdim=True)
    return square / (1 + square) * s * torch.rsqrt(square + 1e-12)


def dynamic(u: Tensor, W: Tensor, iterations: int = 3, way: str = "einsums") -> Tensor:
    V = votes(u, W)
    logits = torch.zeros(V.shape[:3], device=V.device, dtype=V.dtype)
    return _accumulate(V, logits, lambda b: b.softmax(2), iterations, way)


def max_min(u: Tensor, W: Tensor, iterations: int = 3, way: str = "einsums") -> Tensor:
    V = votes(u, W)

    def stretch(b: Tensor) -> Tensor:
        low, high = b.amin(2, keepdim=True), b.amax(2, keepdim=True)
        return torch.where(high == low, 1.0, (b - low) / torch.where(high == low, 1.0, high - low))

    return _accumulate(V, torch.zeros(V.shape[:3], device=V.device, dtype=V.dtype), stretch, iterations, way)


def _accumulate(V: Tensor, logits: Tensor, normalise: Callable[[Tensor], Tensor], iterations: int, way: str) -> Tensor:
    for iteration in range(iterations):
        poses = squash(weighted(normalise(logits), V, way))
        if iteration + 1 < iterations:
            logits = logits + agreed(V, poses, way)
    return poses


def fast(u: Tensor, W: Tensor, C: Tensor) -> Tensor:
    return squash(torch.einsum("ij,bijao->bjao", C, votes(u, W)))


def pooling(u: Tensor, sharpness: float = 1.0) -> Tensor:
    """Children vote for themselves: u [b,i,a,k] -> [b,1,a,k], one iteration."""
    mean = u.mean(1, keepdim=True)
    cosine = F.cosine_similarity(u.flatten(2), mean.flatten(2), dim=2)
    return (u * (sharpness * cosine).softmax(1)[:, :, None, None]).sum(1, keepdim=True)


def inverted_attention(u: Tensor, W: Tensor, iterations: int = 2, way: str = "einsums") -> Tensor:
    V = votes(u, W)
    c = torch.full(V.shape[:3], 1 / V.shape[2], device=V.device, dtype=V.dtype)
    for iteration in range(iterations):
        poses = F.layer_norm(weighted(c, V, way), V.shape[3:])
        if iteration + 1 < iterations:
            c = agreed(V, poses, way).softmax(2)
    return poses


def em(
    u: Tensor, W: Tensor, activations: Tensor, beta_use: Tensor, beta_activate: Tensor, iterations: int = 3,
    way: str = "einsums",
) -> Tensor:  # fmt: skip
    V = votes(u, W)
    R = torch.full(V.shape[:3], 1 / V.shape[2], device=V.device, dtype=V.dtype)
    for iteration in range(iterations):
        weights = R * activations[:, :, None]
        total = weights.sum(1)
        mean, variance = _gaussian(V, weights, total, way)
        variance = variance.clamp_min(1e-6)
        cost = (V.shape[3] * V.shape[4] * beta_use + 0.5 * variance.log().sum((2, 3))) * total
        logits = 0.01 * (1 - 0.95 ** (iteration + 1)) * (beta_activate - cost)
        if iteration + 1 < iterations:
            R = (_log_density(V, mean, variance) + F.logsigmoid(logits)[:, None]).softmax(2)
    return mean


def heinsen(
    u: Tensor, W: Tensor, scores: Tensor, beta_use: Tensor, beta_ignore: Tensor, iterations: int = 3, eps: float = 1e-5,
    way: str = "einsums",
) -> Tensor:  # fmt: skip
    V = votes(u, W)
    gate = scores.sigmoid()[:, :, None]
    R = torch.full(V.shape[:3], 1 / V.shape[2], device=V.device, dtype=V.dtype)
    for iteration in range(iterations):
        use = gate * R
        parent_scores = (beta_use * use).sum(1) - (beta_ignore * (gate - use)).sum(1)
        mean, variance = _gaussian(V, use, use.sum(1) + eps, way)
        variance = variance + eps
        if iteration + 1 < iterations:
            R = (_log_density(V, mean, variance) + F.logsigmoid(parent_scores)[:, None]).softmax(2)
    return mean


def self_attention(u: Tensor, W: Tensor, prior: Tensor, way: str = "einsums") -> Tensor:
    V = votes(u, W)
    scores = agreed(V, V.sum(1), way) * (V.shape[3] * V.shape[4]) ** -0.5
    s = weighted((scores + prior).softmax(2), V, way)
    length = s.square().sum((2, 3), keepdim=True).clamp_min(1e-12).sqrt()
    return -torch.expm1(-length) / length * s


def self_routing(u: Tensor, W: Tensor, activations: Tensor, logits: Tensor, way: str = "einsums") -> Tensor:
    weights = activations[:, :, None] * logits.softmax(2)
    return weighted(weights, votes(u, W), way) / weights.sum(1)[:, :, None, None]


def vb(
    u: Tensor, W: Tensor, activations: Tensor, beta_use: Tensor, beta_activate: Tensor, iterations: int = 3,
    way: str = "einsums",
) -> Tensor:  # fmt: skip
    """Betas make scores, which nobody asks for here: they have no gradient."""
    V = votes(u, W)
    pose = V.shape[3] * V.shape[4]
    R = torch.full(V.shape[:3], 1 / V.shape[2], device=V.device, dtype=V.dtype)
    steps = torch.arange(pose, device=V.device)
    for iteration in range(iterations):
        weights = R * activations[:, :, None]
        N = weights.sum(1)
        mean, variance = _gaussian(V, weights, N, way)
        kappa, nu, total = 1 + N, pose + 1 + N, N[:, :, None, None]
        P = 1 + total * variance + (total / (1 + total)) * mean.square()
        mean = total / (1 + total) * mean
        log_share = kappa.digamma() - kappa.sum(1, keepdim=True).digamma()
        log_volume = (0.5 * (nu[:, :, None] - steps)).digamma().sum(2) + pose * math.log(2)
        prior = log_share + 0.5 * (log_volume - P.log().sum((2, 3)) - pose / kappa)
        if iteration + 1 < iterations:
            spread = ((V - mean[:, None]).square() / P[:, None]).sum((3, 4))
            R = (prior[:, None] - 0.5 * nu[:, None] * spread).softmax(2)
    return mean


def _gaussian(V: Tensor, weights: Tensor, total: Tensor, way: str) -> tuple[Tensor, Tensor]:
    total = total[:, :, None, None]
    mean = weighted(weights, V, way) / total
    return mean, weighted(weights, (V - mean[:, None]).square(), way) / total


def _log_density(V: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((V - mean[:, None]).square() / variance[:, None] + variance[:, None].log()).sum((3, 4))


TEXTBOOK: dict[str, Callable[..., Tensor]] = {
    "dynamic": dynamic,
    "max_min": max_min,
    "fast": fast,
    "pooling": pooling,
    "inverted_attention": inverted_attention,
    "em": em,
    "heinsen": heinsen,
    "self_attention": self_attention,
    "self_routing": self_routing,
    "vb": vb,
}
ONCE = ("fast", "pooling", "self_attention", "self_routing")  # these do not iterate
