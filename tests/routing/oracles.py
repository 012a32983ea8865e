"""The routing algorithms as plain loops in float64, statement by statement as in the papers.

Nothing here is shared with the package, nothing is fast, and nothing is clever: `V[b][i][j]` is a stored vote, an array
[a, o]. Every function takes votes [b, i, j, a, o] and returns `Oracle(poses, coefficients, scores, variances)`.
"""

import math
from typing import NamedTuple

import numpy as np


class Oracle(NamedTuple):
    poses: np.ndarray  # [b, j, a, o]
    coefficients: np.ndarray  # [b, i, j], those that made the poses
    scores: np.ndarray | None = None  # [b, j]
    variances: np.ndarray | None = None  # [b, j, a, o]


def votes(u, W, bias=None) -> np.ndarray:
    """V[b,i,j,a,o] = sum_k u[b,i,a,k] W[i,j,k,o] + bias[i,j,a,o], one number at a time."""
    (B, I, A, K), (_, J, _, O) = u.shape, W.shape
    V = np.zeros((B, I, J, A, O))
    for b, i, j, a, o in np.ndindex(B, I, J, A, O):
        row = 0 if W.shape[0] == 1 else i
        V[b, i, j, a, o] = sum(u[b, i, a, k] * W[row, j, k, o] for k in range(K))
        if bias is not None:
            V[b, i, j, a, o] += bias[0 if bias.shape[0] == 1 else i, j, a, o]
    return V


def norm(x) -> float:
    return math.sqrt(sum(float(value) ** 2 for value in x.flat))


def squash(s):
    """||s||^2 / (1 + ||s||^2) * s / ||s||; zero stays zero."""
    length = norm(s)
    return s * 0.0 if length == 0 else length**2 / (1 + length**2) * s / length


def unit(x):
    return x * 0.0 if norm(x) == 0 else x / norm(x)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softmax(numbers) -> list[float]:
    highest = max(numbers)
    powers = [math.exp(number - highest) for number in numbers]
    return [power / sum(powers) for power in powers]


def max_min(numbers, lower: float, upper: float) -> list[float]:
    """Eq. 2 of Zhao 2019; a child that agrees equally with all its parents belongs to all of them: upper."""
    low, high = min(numbers), max(numbers)
    if low == high:
        return [upper for _ in numbers]
    return [lower + (number - low) / (high - low) * (upper - lower) for number in numbers]


def layer_norm(pose, eps=1e-5):
    mean = sum(pose.flat) / pose.size
    variance = sum((value - mean) ** 2 for value in pose.flat) / pose.size
    return (pose - mean) / math.sqrt(variance + eps)


def weighted_sum(weights, V, j):
    """sum_i weights[i] V[i][j] of one sample."""
    total = np.zeros(V.shape[2:])
    for i in range(len(V)):
        total = total + weights[i] * V[i, j]
    return total


def dot(x, y) -> float:
    return sum(float(p) * float(q) for p, q in zip(x.flat, y.flat))


def each_sample(route):
    """Run a one-sample oracle on every sample of a batch by itself, so that no oracle can couple samples."""

    def routed(V, *per_sample, **options) -> Oracle:
        rows = [route(V[b], *(argument[b] for argument in per_sample), **options) for b in range(len(V))]
        columns = [None if column[0] is None else np.stack(column) for column in zip(*rows)]
        return Oracle(*columns)

    return routed


def accumulated(V, iterations, first, normalise):
    """What Sabour 2017 and Zhao 2019 (section 3) share: logits accumulate, each child normalises its own."""
    I, J = V.shape[:2]
    b = np.zeros((I, J))
    c = np.full((I, J), first)
    for _ in range(iterations):
        v = np.stack([squash(weighted_sum(c[:, j], V, j)) for j in range(J)])
        used = c
        for i in range(I):
            for j in range(J):
                b[i, j] += dot(V[i, j], v[j])
        c = np.array([normalise(list(b[i])) for i in range(I)]).reshape(I, J)
    return Oracle(v, used)


@each_sample
def dynamic(V, iterations=3):
    """Sabour 2017, procedure 1. softmax of zero logits is 1 / J."""
    return accumulated(V, iterations, 1 / V.shape[1], softmax)


@each_sample
def max_min_routing(V, iterations=3, lower=0.0, upper=1.0):
    """Zhao 2019, section 3, Max-Min Routing Procedure."""
    return accumulated(V, iterations, 1.0, lambda logits: max_min(logits, lower, upper))


@each_sample
def fast(V, coefficients):
    """Zhao 2019, section 3, Fast Routing Procedure for Inference."""
    v = [squash(weighted_sum(coefficients[:, j], V, j)) for j in range(V.shape[1])]
    return Oracle(np.stack(v), coefficients)


@each_sample
def pooling(V, iterations=1, sharpness=1.0):
    """Zhao & Huang 2019, algorithm 1, without the activation of line 11."""
    I, J = V.shape[:2]
    b = np.zeros((I, J))
    c = np.full((I, J), 1 / I)
    for _ in range(iterations):
        for j in range(J):
            v = unit(weighted_sum(c[:, j], V, j))
            for i in range(I):
                b[i, j] += dot(unit(V[i, j]), v)
            c[:, j] = softmax([sharpness * b[i, j] for i in range(I)])
    return Oracle(np.stack([weighted_sum(c[:, j], V, j) for j in range(J)]), c)


@each_sample
def inverted_attention(V, parents, scale=1.0, iterations=1):
    """Tsai 2020, procedure 1: one step, or more."""
    I, J = V.shape[:2]
    r = np.zeros((I, J))
    for _ in range(iterations):
        for i in range(I):
            r[i] = softmax([scale * dot(parents[j], V[i, j]) for j in range(J)])
        parents = np.stack([layer_norm(weighted_sum(r[:, j], V, j)) for j in range(J)])
    return Oracle(parents, r)


def hinton_schedule(t: int) -> float:
    return 0.01 * (1 - 0.95 ** (t + 1))


@each_sample
def em(
    V, a_in, beta_use=None, beta_activate=None, iterations=3, inverse_temperature=hinton_schedule, variance_floor=1e-6
):
    """Hinton 2018, procedure 1: M-step, then E-step; the E-step after the last M-step would change nothing returned."""
    I, J, A, O = V.shape
    R = np.full((I, J), 1 / J)
    mean, variance, a_out = np.zeros((J, A, O)), np.zeros((J, A, O)), np.zeros(J)
    for t in range(iterations):
        if t > 0:
            R = gaussian_shares(V, mean, variance, [math.log(a) for a in a_out])
        for j in range(J):
            weights = [R[i, j] * a_in[i] for i in range(I)]
            used = sum(weights)
            mean[j] = weighted_sum(weights, V, j) / used
            spread = weighted_sum(weights, (V - mean[None]) ** 2, j) / used
            variance[j] = np.maximum(spread, variance_floor)
            cost = sum((beta_use[j] + 0.5 * math.log(value)) * used for value in variance[j].flat)
            a_out[j] = logistic(inverse_temperature(t) * (beta_activate[j] - cost))
    return Oracle(mean, R, a_out, variance)


@each_sample
def heinsen(V, a_in, beta_use=None, beta_ignore=None, iterations=3, eps=1e-5, relative=False, soft_k_means=False):
    """Heinsen 2019, algorithm 1, with eps in the two divisors and on the variance; `relative` to equal shares."""
    I, J, A, O = V.shape
    R = np.full((I, J), 1 / J)
    mean, variance, a_out = np.zeros((J, A, O)), np.zeros((J, A, O)), np.zeros(J)
    for t in range(iterations):
        if t > 0:
            prior = [math.log(logistic(a)) for a in a_out]
            R = squared_shares(V, mean, prior) if soft_k_means else gaussian_shares(V, mean, variance, prior)
        for j in range(J):
            use = [logistic(a_in[i]) * R[i, j] for i in range(I)]
            ignore = [logistic(a_in[i]) - use[i] for i in range(I)]
            benefit = sum(beta_use[i % len(beta_use), j] * use[i] for i in range(I))
            cost = sum(beta_ignore[i % len(beta_ignore), j] * ignore[i] for i in range(I))
            if relative:
                everything = max(sum(logistic(a) for a in a_in), eps)
                benefit /= everything / J
                cost /= everything * (1 - 1 / J) if J > 1 else 1
            a_out[j] = benefit - cost
            mean[j] = weighted_sum(use, V, j) / (sum(use) + eps)
            variance[j] = weighted_sum(use, (V - mean[None]) ** 2, j) / (sum(use) + eps) + eps
    return Oracle(mean, R, a_out, variance)


def squared_shares(V, mean, log_activation):
    """R_ij of soft k-means: a_j exp(-|V_ij - mean_j|^2), normalised over parents."""
    R = np.zeros(V.shape[:2])
    for i in range(len(V)):
        R[i] = softmax([prior - norm(vote - m) ** 2 for vote, m, prior in zip(V[i], mean, log_activation)])
    return R


def gaussian_shares(V, mean, variance, log_activation):
    """R_ij = a_j p_ij / sum_j' a_j' p_ij', with p_ij the diagonal Gaussian density of vote ij under parent j."""
    I, J = V.shape[:2]
    R = np.zeros((I, J))
    for i in range(I):
        logits = []
        for j in range(J):
            density = 0.0
            for v, m, s in zip(V[i, j].flat, mean[j].flat, variance[j].flat):
                density -= (v - m) ** 2 / (2 * s) + 0.5 * math.log(2 * math.pi * s)
            logits.append(density + log_activation[j])
        R[i] = softmax(logits)
    return R


@each_sample
def self_routing(V, a_in, logits):
    """Hahn 2019, section 3: shares are the child's own; poses are means weighted by them."""
    I, J = V.shape[:2]
    r = np.array([softmax(list(logits[i])) for i in range(I)]).reshape(I, J)
    poses, a_out = np.zeros(V.shape[1:]), np.zeros(J)
    for j in range(J):
        used = [a_in[i] * r[i, j] for i in range(I)]
        a_out[j] = sum(used) / sum(a_in) if sum(a_in) > 0 else 0.0
        poses[j] = weighted_sum(used, V, j) / sum(used) if sum(used) > 0 else 0.0
    return Oracle(poses, r, a_out)


def exponential_squash(s):
    """(1 - exp(-||s||)) s / ||s||; zero stays zero."""
    length = norm(s)
    return s * 0.0 if length == 0 else (1 - math.exp(-length)) * s / length


@each_sample
def self_attention(V, prior=None):
    """Mazzia 2021, section 3.2: each vote against the sum of its parent's votes, and a prior."""
    I, J, A, O = V.shape
    S = [weighted_sum([1.0] * I, V, j) for j in range(J)]
    c = np.zeros((I, J))
    for i in range(I):
        c[i] = softmax(
            [dot(V[i, j], S[j]) / math.sqrt(A * O) + (0 if prior is None else prior[i, j]) for j in range(J)]
        )
    return Oracle(np.stack([exponential_squash(weighted_sum(c[:, j], V, j)) for j in range(J)]), c)


@each_sample
def variational_bayes(V, a_in, beta_use=None, beta_activate=None, iterations=3):
    """Ribeiro 2020, algorithm 1, diagonal: the E-step after the last M-step would change nothing returned."""
    I, J, A, O = V.shape
    D = A * O
    R = np.full((I, J), 1 / J)
    m, P, lnpi, lndet, kappa, nu = (np.zeros((J, A, O)), np.zeros((J, A, O)), *np.zeros((4, J)))
    for t in range(iterations):
        if t > 0:
            for i in range(I):
                logits = []
                for j in range(J):
                    distance = sum((V[i, j] - m[j]).flat[d] ** 2 / P[j].flat[d] for d in range(D))
                    expected = D / kappa[j] + nu[j] * distance
                    logits.append(lnpi[j] + lndet[j] / 2 - D * math.log(2 * math.pi) / 2 - expected / 2)
                R[i] = softmax(logits)
        w = R * np.asarray(a_in).reshape(I, 1)
        N = [sum(w[i, j] for i in range(I)) for j in range(J)]
        alpha, kappa, nu = [1 + n for n in N], [1 + n for n in N], [D + 1 + n for n in N]
        for j in range(J):
            mean = weighted_sum(w[:, j], V, j) / N[j] if N[j] > 0 else np.zeros((A, O))
            m[j] = N[j] * mean / kappa[j]
            P[j] = 1 + weighted_sum(w[:, j], (V - mean[None, None]) ** 2, j) + N[j] / kappa[j] * mean**2
            lnpi[j] = digamma(alpha[j]) - digamma(sum(alpha))
            lndet[j] = sum(digamma((nu[j] - d) / 2) for d in range(D)) + D * math.log(2)
            lndet[j] -= sum(math.log(value) for value in P[j].flat)
    scores = np.zeros(J)
    for j in range(J):
        H = D * math.log(2 * math.pi * math.e) / 2 - lndet[j] / 2
        scores[j] = beta_activate[j] - (math.exp(lnpi[j]) * H + beta_use[j])
    return Oracle(m, R, scores, np.stack([P[j] / nu[j] for j in range(J)]))


def digamma(x: float) -> float:
    """By recurrence up to 20 and the asymptotic series there: good to 1e-15."""
    total = 0.0
    while x < 20:
        total, x = total - 1 / x, x + 1
    y = 1 / x**2
    return total + math.log(x) - 0.5 / x - y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))


@each_sample
def slots(keys, values, queries, scale=None, eps=1e-8, mask=None):
    """Locatello 2020, algorithm 1, up to the weighted mean."""
    (I, D), J = keys.shape, len(queries)
    scale = 1 / math.sqrt(D) if scale is None else scale
    A = np.zeros((I, J))
    for i in range(I):
        A[i] = softmax([scale * dot(keys[i], queries[j]) for j in range(J)])
        A[i] += eps
    for j in range(J):
        total = sum(A[i, j] for i in range(I))
        for i in range(I):
            A[i, j] /= total
    poses = [sum((A[i, j] * values[i] for i in range(I)), np.zeros(values.shape[1])) for j in range(J)]
    return Oracle(np.stack(poses)[:, None], A)
