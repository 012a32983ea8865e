"""What the programs of a Gaussian pass leave, put together in a fixed order."""

import triton.language as tl

from capsroute.form.launch import kernel

__all__ = ["merge_moments", "sum_parts"]


@kernel("B", "J", "S", "eps")
def merge_moments(part, means, variances, totals, dots, rests, B, J, S, eps, F: tl.constexpr, BETA: tl.constexpr,
                  SP: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """Mean and variance [b,f,j] of all children from those of S parts; divided by (sum of weights + eps).

    Rests [b,f,j] are the sums of weights times distances from the mean, rounded as it is: what the variance's slope
    there is made of.
    """
    b, f, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    N: tl.constexpr = 2 if BETA else 1
    size = B * (N + 3 * F) * J
    j = tile * JT + tl.arange(0, JT)[None, :]
    table = part + b * ((N + 3 * F) * J) + j
    weight = tl.zeros((1, JT), tl.float32)
    moment = tl.zeros((1, JT), tl.float32)
    benefit = tl.zeros((1, JT), tl.float32)
    for begin in range(0, S, SP):
        s = begin + tl.arange(0, SP)[:, None]
        at, mask = table + s * size, (s < S) & (j < J)
        w = tl.load(at, mask=mask, other=0.0)
        weight += tl.sum(w, axis=0, keep_dims=True)
        rest = tl.load(at + (N + F + f) * J, mask=mask, other=0.0)
        moment += tl.sum(w * tl.load(at + (N + f) * J, mask=mask, other=0.0) + rest, axis=0, keep_dims=True)
        if BETA:
            benefit += tl.sum(tl.load(at + J, mask=mask, other=0.0), axis=0, keep_dims=True)
    centre = tl.div_rn(moment, tl.where(weight == 0, 1.0, weight))
    square = tl.zeros((1, JT), tl.float32)
    residue = tl.zeros((1, JT), tl.float32)
    for begin in range(0, S, SP):
        s = begin + tl.arange(0, SP)[:, None]
        at, mask = table + s * size, (s < S) & (j < J)
        d = tl.load(at + (N + f) * J, mask=mask, other=0.0) - centre
        rest = tl.load(at + (N + F + f) * J, mask=mask, other=0.0)
        own = tl.load(at + (N + 2 * F + f) * J, mask=mask, other=0.0)
        w = tl.load(at, mask=mask, other=0.0)
        square += tl.sum(own + d * (2 * rest + w * d), axis=0, keep_dims=True)
        residue += tl.sum(rest + w * d, axis=0, keep_dims=True)
    divisor = weight + eps
    divisor = tl.where(divisor == 0, 1.0, divisor)
    # With eps the divisor is not quite the total weight, so the mean is not quite the centre of mass. It is one
    # quotient, rounded once: where variances are tight every rounding of the mean shows in the densities.
    mean = tl.div_rn(moment, divisor)
    off = centre * tl.div_rn(eps, divisor)
    variance = tl.div_rn(square + weight * off * off, divisor)
    tl.store(means + (b * F + f) * J + j, mean, mask=j < J)
    tl.store(variances + (b * F + f) * J + j, variance, mask=j < J)
    tl.store(rests + (b * F + f) * J + j, residue + weight * (centre - mean), mask=j < J)
    if f == 0:
        tl.store(totals + b * J + j, weight, mask=j < J)
        if BETA:
            tl.store(dots + b * J + j, benefit, mask=j < J)


@kernel("S", "N")
def sum_parts(part, out, S, N, SP: tl.constexpr, NT: tl.constexpr):
    """out[n] = sum of part[s, n] over s."""
    n = tl.program_id(0) * NT + tl.arange(0, NT)[None, :]
    total = tl.zeros((1, NT), tl.float32)
    for begin in range(0, S, SP):
        s = begin + tl.arange(0, SP)[:, None]
        x = tl.load(part + s * N + n, mask=(s < S) & (n < N), other=0.0)
        total += tl.sum(x, axis=0, keep_dims=True)
    tl.store(out + n, total, mask=n < N)
