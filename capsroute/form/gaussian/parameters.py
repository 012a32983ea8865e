"""Gradients of what EM and Heinsen learn, from table_few [t, b, (constant, benefit, cost), j]: see `gradients`."""

import triton.language as tl

from capsroute.form.launch import kernel


@kernel("B", "I", "J", "NB")
def beta_sums(R, gate, table_few, by_use, by_ignore, B, I, J, NB, T: tl.constexpr, BT: tl.constexpr,
              IC: tl.constexpr, JT: tl.constexpr):  # fmt: skip
    """by_use and by_ignore [split,i,j]: sums of gate R g and -gate (1 - R) g, where g are the gradients of benefits.

    A program sums over its share of the samples, NB times BT of them, and over iterations, for a tile of i and j.
    """
    i = tl.program_id(0) * IC + tl.arange(0, IC)[None, :, None]
    j = tl.program_id(1) * JT + tl.arange(0, JT)[None, None, :]
    split = tl.program_id(2)
    inside = (i < I) & (j < J)
    used = tl.zeros((BT, IC, JT), tl.float32)
    ignored = tl.zeros((BT, IC, JT), tl.float32)
    for step in range(NB):
        b = (split * NB + step) * BT + tl.arange(0, BT)[:, None, None]
        g = tl.load(gate + b * I + i, mask=(i < I) & (b < B), other=0.0)
        for t in tl.static_range(T):
            if t == 0:
                share = tl.zeros((BT, IC, JT), tl.float32) + 1.0 / J
            else:
                at = R + (((t - 1) * B + b) * I + i).to(tl.int64) * J + j
                share = tl.load(at, mask=inside & (b < B), other=0.0)
            at = table_few + (t * B + b) * (3 * J) + J + j
            gradient = g * tl.load(at, mask=(j < J) & (b < B), other=0.0)
            used += share * gradient
            ignored -= (1 - share) * gradient
    to = (split * I + i) * J + j
    tl.store(by_use + to, tl.sum(used, axis=0, keep_dims=True), mask=inside)
    tl.store(by_ignore + to, tl.sum(ignored, axis=0, keep_dims=True), mask=inside)


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
