"""Gradients of what EM and Heinsen learn, from table_few [t, b, (constant, benefit, cost), j]: see `gradients`."""

import triton.language as tl

from capsroute.form.launch import kernel

__all__ = ["beta_sums", "cost_sums"]


@kernel("B", "I", "J")
def beta_sums(R, gate, table_few, by_use, by_ignore, B, I, J, T: tl.constexpr, IC: tl.constexpr,
              JT: tl.constexpr):  # fmt: skip
    """A program sums over samples and iterations, for a tile of by_use and by_ignore [i,j]: gate R g, -gate (1 - R) g,
    where g are the gradients of benefits."""
    i = tl.program_id(0) * IC + tl.arange(0, IC)[:, None]
    j = tl.program_id(1) * JT + tl.arange(0, JT)[None, :]
    inside = (i < I) & (j < J)
    used = tl.zeros((IC, JT), tl.float32)
    ignored = tl.zeros((IC, JT), tl.float32)
    for b in range(B):
        g = tl.load(gate + b * I + i, mask=i < I, other=0.0)
        for t in tl.static_range(T):
            if t == 0:
                share = tl.zeros((IC, JT), tl.float32) + 1.0 / J
            else:
                share = tl.load(R + (((t - 1) * B + b) * I + i).to(tl.int64) * J + j, mask=inside, other=0.0)
            gradient = g * tl.load(table_few + (t * B + b) * (3 * J) + J + j, mask=j < J, other=0.0)
            used += share * gradient
            ignored -= (1 - share) * gradient
    tl.store(by_use + i * J + j, used, mask=inside)
    tl.store(by_ignore + i * J + j, ignored, mask=inside)


@kernel("N", "J")
def cost_sums(table_few, by_benefit, by_cost, N, J, BT: tl.constexpr, JT: tl.constexpr):
    """A program sums over samples and iterations, N in all, the gradients that parameters of EM need, for JT of j."""
    j = tl.program_id(0) * JT + tl.arange(0, JT)[None, :]
    first = tl.zeros((1, JT), tl.float32)
    second = tl.zeros((1, JT), tl.float32)
    for begin in range(0, N, BT):
        n = begin + tl.arange(0, BT)[:, None]
        at, mask = table_few + n * (3 * J) + J + j, (n < N) & (j < J)
        first += tl.sum(tl.load(at, mask=mask, other=0.0), axis=0, keep_dims=True)
        second += tl.sum(tl.load(at + J, mask=mask, other=0.0), axis=0, keep_dims=True)
    tl.store(by_benefit + j, first, mask=j < J)
    tl.store(by_cost + j, second, mask=j < J)
