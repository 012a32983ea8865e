"""Gaussians over votes: density and moments, from stored votes, or from the children alone when transforms are shared.

With W[1,j,k,o] a vote is the same affine map of every child, so the log-density of parent j is a quadratic in the child
and the votes' mean and variance are images of the children's weighted moments. With features
phi(x) = [1, x, upper triangle of x x^T per row], all the work is two matrix products an iteration:

    log-densities [b,i,j] = phi @ theta_j          moments [b,j,F] = weights^T @ phi

Both are differences of large sums where a parent's children lie close together and far from the others, as they do when
routing succeeds. Float32 would lose the variance (2 % of it at 100 standard deviations), so these sums are in float64.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from capsroute.form.contractions.plain import statistics_dtype

TINY = 1e-30  # a sum of weights that is none
KINDS = EM, HEINSEN, BAYES = range(3)  # of whole loops


def sums_dtype(device: torch.device) -> torch.dtype:
    """What sums of squares are kept in before a difference is taken: float64, which Apple's GPUs lack."""
    return torch.float32 if device.type == "mps" else torch.float64


def dense_log_density(votes: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """votes [b,j,i,f], mean and variance [b,j,f] -> log-density up to a constant [b,j,i]."""
    # In units of the deviation: squares of votes of 1e15 would leave float32 in a derivative. Any unit gives the same
    # density, so that no gradient is needed through it, and a power of two the same digits.
    inverse = torch.exp2((-0.5 * variance.detach().log2()).round())
    distance = torch.addcmul((-mean * inverse).unsqueeze(2), votes, inverse.unsqueeze(2)).square()
    precision = (variance * inverse * inverse).reciprocal()
    scaled = torch.matmul(distance, precision.unsqueeze(3)).squeeze(3)
    return -0.5 * (scaled + variance.log().sum(2, keepdim=True))


def dense_moments(votes: Tensor, weights: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """votes [b,j,i,f], weights [b,j,i] -> weighted mean and variance [b,j,f], zero where all weights are."""
    weights = weights.unsqueeze(2)  # [b, j, 1, i]
    total = _nonzero(weights.sum(3) + eps)  # [b, j, 1]
    if votes.shape[2] == 1:
        # One child has a share of one: its vote is the mean, not a rounding of that, which would be a variance.
        weights, total = weights / total.unsqueeze(3), torch.ones_like(total)
    mean = torch.matmul(weights, votes).squeeze(2) / total
    variance = torch.matmul(weights, (votes - mean.unsqueeze(2)).square()).squeeze(2) / total
    return mean, variance


def moments_pay(dtype: torch.dtype, rows: int, k: int, o: int) -> bool:
    """Whether features of a child are few enough, against the votes they replace, to be worth it.

    Never in float64: sums that keep float32's digits are no wider than that, and lose as many of its own.
    """
    return dtype != torch.float64 and 1 + rows * (k + k * (k + 1) // 2) <= 8 * rows * o


class ChildMoments:
    """Shared-transform votes as moments of the children: u [b,i,a,k], W [1,j,k,o], bias [1,j,a,o] or None."""

    def __init__(self, u: Tensor, W: Tensor, bias: Tensor | None):
        self.dtype = torch.promote_types(torch.float32, u.dtype)
        self.wide = sums_dtype(u.device)
        self.W = W[0].to(self.wide)  # [j, k, o]
        u = u.to(self.wide)
        # Centred children keep E[x^2] - E[x]^2 from cancelling needlessly. Any centre will do: it needs no gradient.
        centre = u.detach().sum(1, keepdim=True) / max(u.shape[1], 1)  # [b, 1, a, k]
        offset = torch.einsum("bak,jko->bjao", centre.squeeze(1), self.W)
        self.offset = offset if bias is None else offset + bias[0].to(self.wide)  # the centre's vote [b, j, a, o]
        self.rows, self.k = u.shape[2], u.shape[3]
        upper = torch.triu_indices(self.k, self.k, device=u.device)
        self._first, self._second = upper[0], upper[1]
        self.features = self._features(u - centre)  # [b, i, F]

    def log_density(self, mean: Tensor, variance: Tensor) -> Tensor:
        mean, variance = mean.to(self.wide), variance.to(self.wide)
        precision = variance.reciprocal()  # [b, j, a, o]
        shift = mean - self.offset
        quadratic = torch.einsum("jko,jlo,bjao->bjakl", self.W, self.W, precision)
        # An off-diagonal pair stands once among the features and twice in the square.
        twice = torch.where(self._first == self._second, 1.0, 2.0).to(quadratic.dtype)
        quadratic = quadratic.flatten(3).index_select(3, self._first * self.k + self._second) * twice
        linear = -2 * torch.einsum("jko,bjao->bjak", self.W, shift * precision)
        constant = (shift.square() * precision + variance.log()).sum((2, 3)).unsqueeze(2)
        theta = -0.5 * torch.cat([constant, linear.flatten(2), quadratic.flatten(2)], 2)  # [b, j, F]
        return torch.bmm(self.features, theta.mT).to(self.dtype)

    def moments(self, weights: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        sums = self._sums(weights)  # [b, j, F]
        total, linear, quadratic = sums.split([1, self.rows * self.k, sums.shape[2] - 1 - self.rows * self.k], 2)
        exact, total = _nonzero(total)[..., None], total[..., None]
        divisor = _nonzero(total + eps)
        child_mean = linear.unflatten(2, (self.rows, self.k)) / exact  # [b, j, a, k]
        centred_mean = torch.einsum("bjak,jko->bjao", child_mean, self.W)
        mean = (centred_mean + self.offset) * (total / divisor)
        spread = (self._project(quadratic / exact.squeeze(3)) - centred_mean.square()).clamp_min(0)
        # With eps the divisor is not quite the total weight, so the mean is not quite the centre of mass.
        variance = (spread + (centred_mean + self.offset - mean).square()) * (total / divisor)
        return mean.to(self.dtype), variance.to(self.dtype)

    def _sums(self, weights: Tensor) -> Tensor:
        """Weighted sums of the features, once where all parents have the same weights (an expanded tensor)."""
        parents = weights.shape[2]
        weights = weights[:, :, :1] if parents > 1 and weights.stride(2) == 0 else weights
        return torch.bmm(weights.to(self.wide).mT, self.features).expand(-1, parents, -1)

    def _features(self, x: Tensor) -> Tensor:
        ones = torch.ones_like(x[:, :, 0, :1])
        # index_select, not x[...]: on the way back the latter sorts its indices on a GPU.
        pairs = x.index_select(3, self._first) * x.index_select(3, self._second)  # [b, i, a, k(k+1)/2]
        return torch.cat([ones, x.flatten(2), pairs.flatten(2)], 2)

    def _project(self, pairs: Tensor) -> Tensor:
        """Second moments of children [b,j,a*pairs] to second moments of their votes [b,j,a,o]."""
        twice = torch.where(self._first == self._second, 1.0, 2.0).to(pairs.dtype)
        products = (
            self.W.index_select(1, self._first) * self.W.index_select(1, self._second) * twice[:, None]
        )  # [j, pairs, o]
        return torch.einsum("bjap,jpo->bjao", pairs.unflatten(2, (self.rows, twice.shape[0])), products)


def plain_density(u: Tensor, W: Tensor, bias: Tensor | None, mean: Tensor, variance: Tensor) -> Tensor:
    """log N(vote; mean, variance) of linear votes, without kernels: [b,i,j]."""
    if _by_moments(u, W):
        return ChildMoments(u, W, bias).log_density(mean, variance)
    return dense_log_density(_by_parent(u, W, bias), mean.flatten(2), variance.flatten(2)).mT


def plain_moments(
    u: Tensor, W: Tensor, bias: Tensor | None, weights: Tensor, beta: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """Mean and variance with weights [b,i,j or 1], sums of weights, and of weights * beta (empty without betas)."""
    weights = weights.expand(-1, -1, W.shape[1])
    if _by_moments(u, W):
        mean, variance = ChildMoments(u, W, bias).moments(weights, eps)
    else:
        pose = (u.shape[2], W.shape[3])
        found = dense_moments(_by_parent(u, W, bias), weights.mT, eps)
        mean, variance = (part.unflatten(2, pose) for part in found)
    return mean, variance, weights.sum(1), weights.new_empty(0) if beta is None else (weights * beta).sum(1)


def _by_moments(u: Tensor, W: Tensor) -> bool:
    return W.shape[0] == 1 < u.shape[1] and moments_pay(u.dtype, u.shape[2], W.shape[2], W.shape[3])


def _by_parent(u: Tensor, W: Tensor, bias: Tensor | None) -> Tensor:
    """The votes, stored: [b, j, i, a*o]."""
    dtype = statistics_dtype(u, W)
    votes = torch.einsum("biak,ijko->bjiao", u.to(dtype), W.to(dtype).expand(u.shape[1], -1, -1, -1))
    votes = votes if bias is None else votes + bias.to(dtype).transpose(0, 1)
    return votes.flatten(3)


def plain_step(
    u: Tensor, W: Tensor, bias: Tensor | None, gate: Tensor, mean: Tensor, variance: Tensor, prior: Tensor,
    beta: Tensor | None, eps: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """R = softmax over parents of log-density + prior; then the moments with weights gate * R."""
    R = (plain_density(u, W, bias, mean, variance) + prior.unsqueeze(1)).softmax(2)
    return R, *plain_moments(u, W, bias, gate.unsqueeze(2) * R, beta, eps)


def plain_sums(gate: Tensor, beta: Tensor) -> Tensor:
    """Sum over children of gate [b,i] * beta [i,j], as exact as a sum of thousands can be: [b,j]."""
    wide = sums_dtype(gate.device)
    return torch.matmul(gate.to(wide), beta.to(wide)).to(gate.dtype)


def plain_loop(
    u: Tensor, W: Tensor, bias: Tensor | None, scores: Tensor, use: Tensor, other: Tensor, scale: Tensor | None,
    rates: Sequence[float], eps: float, kind: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All iterations of EM (`rates`: inverse temperatures), Heinsen or variational Bayes routing, from equal shares.

    Scores [b,i] are the children's weights, or what those are logistic of (Heinsen). use and other: [1,j] what a unit
    of weight costs and what activates (EM), or what a score has less and more (Bayes); [i or 1,j] what using and
    ignoring a child is worth (Heinsen), in all divided by the inverse of scale [b,1] where given. eps: the least
    variance (EM), or what is added to it and to weights that divide (Heinsen). Means and variances [b,j,a,o], logits
    [b,j] and the shares [t-1,b,i,j].
    """
    heinsen = kind == HEINSEN
    gate, use, other = (t.to(statistics_dtype(u, W)) for t in (scores, use, other))
    gate, beta = (gate.sigmoid(), use + other) if heinsen else (gate, None)
    pose = u.shape[2] * W.shape[3]
    shares: list[Tensor] = []
    found = plain_moments(u, W, bias, gate.unsqueeze(2) / W.shape[1], beta, eps if heinsen else 0.0)
    for rate in rates:
        mean, variance, total, benefit = found
        if heinsen:
            variance = variance + eps
            logits = benefit - (gate.unsqueeze(2) * other).sum(1)
            logits = logits if scale is None else logits * scale
        elif kind == BAYES:
            mean, variance, prior, cost = belief(mean, variance, total)
            logits = other - (cost + use)
        else:
            variance = variance.clamp_min(eps)
            logits = rate * (other - (pose * use + 0.5 * variance.log().sum((2, 3))) * total)
        if len(shares) + 1 < len(rates):
            prior = prior if kind == BAYES else -torch.nn.functional.softplus(-logits, threshold=40)
            stepped = plain_step(u, W, bias, gate, mean, variance, prior, beta, eps if heinsen else 0.0)
            shares.append(stepped[0])
            found = stepped[1:]
    stacked = torch.stack(shares) if shares else mean.new_empty((0, u.shape[0], u.shape[1], W.shape[1]))
    return mean, variance, logits, stacked


class Belief(NamedTuple):
    """What variational Bayes routing believes of each parent: see `routing/variational_bayes`."""

    means: Tensor  # m [b, j, a, o]
    variances: Tensor  # P / nu [b, j, a, o]
    prior: Tensor  # what is added to log-densities [b, j]
    cost: Tensor  # exp(lnpi) H [b, j]


def belief(mean: Tensor, variance: Tensor, N: Tensor) -> Belief:
    """From mean and variance [b,j,a,o] of the votes of parents, and how many they have, N [b,j]."""
    pose = mean.shape[2] * mean.shape[3]
    kappa, nu = 1 + N, pose + 1 + N
    shrink = (N / kappa)[:, :, None, None]
    P = 1 + N[:, :, None, None] * variance + shrink * mean.square()
    log_share = kappa.digamma() - kappa.sum(1, keepdim=True).digamma()
    steps = torch.arange(pose, dtype=N.dtype, device=N.device)
    log_volume = (0.5 * (nu.unsqueeze(2) - steps)).digamma().sum(2) + pose * math.log(2)  # of ln det what has no P
    # A log-density of variance P / nu has - (sum ln P - D ln nu) / 2 in it: ln P is in the determinant already.
    prior = log_share + 0.5 * (log_volume - pose * nu.log() - pose / kappa)
    entropy = 0.5 * (pose * math.log(2 * math.pi * math.e) - (log_volume - P.log().sum((2, 3))))
    return Belief(shrink * mean, P / nu[:, :, None, None], prior, log_share.exp() * entropy)


def _nonzero(x: Tensor) -> Tensor:
    """x, with zeros made one, so that an empty sum divided by it is zero rather than NaN. Sums of weights that are
    nothing but what an exponential left over count as empty: their reciprocal has no finite derivative."""
    return torch.where(x.abs() < TINY, 1.0, x)
