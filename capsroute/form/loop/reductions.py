"""Small kernels between the passes: partial sums added up, then what makes poses of them, or the derivative of it."""

import triton
import triton.language as tl

from capsroute.form.launch import in_turn, kernel
from capsroute.form.tiles import there
from capsroute.form.updates import updated, updated_gradient


@triton.jit
def _total(part, at, mask, S, size, SP, JC, AOP):
    """Sum over the S splits, in a fixed order: [JC, AOP]."""
    total = tl.zeros((JC, AOP), tl.float32)
    for first in range(0, S, SP):
        split = first + tl.arange(0, SP)[:, None, None]
        x = tl.load(part + split * size + at[None, :, :], mask=(split < S) & mask[None, :, :], other=0.0)
        total += tl.sum(x, axis=0)
    return total


@kernel("S", "B", "t", "scale")
def sum_and_squash(part, s_out, q_out, poses, B, S, t, scale, J: tl.constexpr, AO: tl.constexpr, AOP: tl.constexpr,
                   JC: tl.constexpr, SP: tl.constexpr, SLOT: tl.constexpr, T: tl.constexpr,
                   NORM: tl.constexpr):  # fmt: skip
    """Iteration t of T: a program holds the sums of a sample and JC parents, over all splits of the children.

    s[t] = sum of part; v = squash(s); the last iteration's v are the poses, an earlier one's add to the query.

    The query is kept in part[SLOT], behind the partial sums; q_out[t] is a copy in the dtype of matrix operands. A pose
    that is NORMalised, as in inverted attention, is the query by itself, times the scale.
    """
    in_turn()
    b, group = tl.program_id(0), tl.program_id(1)
    j, ao = group * JC + tl.arange(0, JC), tl.arange(0, AOP)
    at = b * (J * AO) + j[:, None] * AO + ao[None, :]
    mask = (j < J)[:, None] & (ao < AO)[None, :]
    s = _total(part, at, mask, S, B * J * AO, SP, JC, AOP)
    query = part + SLOT * (B * J * AO)
    tl.store(s_out + t * (B * J * AO) + at, s, mask=mask)
    v = updated(s, mask, AO, NORM, t == T - 1)
    if t == T - 1:
        tl.store(poses + at, v, mask=mask)
    else:
        if NORM:
            v = v * scale
        else:
            v += tl.load(query + at, mask=mask & there(0, t), other=0.0)
            tl.store(query + at, v, mask=mask)
        tl.store(q_out + t * (B * J * AO) + at, v, mask=mask)


@kernel("S", "B", "t", "n", "scale")
def sum_and_squash_backward(part, s_in, g_in, x_out, B, S, t, n, scale, J: tl.constexpr, AO: tl.constexpr,
                            AOP: tl.constexpr, JC: tl.constexpr, SP: tl.constexpr, SLOT: tl.constexpr,
                            T: tl.constexpr, NORM: tl.constexpr):  # fmt: skip
    """Back through iteration t of T: a program holds the gradient of a sample and JC parents.

    x_out[n] = gradient of the sums s[t], times scale, in the dtype of matrix operands.

    The gradient of the last iteration's poses is g_in; an earlier one's is the running total of the queries' gradients,
    kept in part[SLOT], to which part is added here; it starts with the last iteration but one.
    """
    in_turn()
    b, group = tl.program_id(0), tl.program_id(1)
    j, ao = group * JC + tl.arange(0, JC), tl.arange(0, AOP)
    at = b * (J * AO) + j[:, None] * AO + ao[None, :]
    mask = (j < J)[:, None] & (ao < AO)[None, :]
    if t == T - 1:
        g = tl.load(g_in + at, mask=mask, other=0.0).to(tl.float32)
    else:
        g = _total(part, at, mask, S, B * J * AO, SP, JC, AOP)
        if not NORM:
            total = part + SLOT * (B * J * AO)
            g += tl.load(total + at, mask=mask & there(t, T - 2), other=0.0)
            tl.store(total + at, g, mask=mask)
    s = tl.load(s_in + t * (B * J * AO) + at, mask=mask, other=0.0)
    tl.store(x_out + n * (B * J * AO) + at, updated_gradient(s, g, mask, AO, NORM, t == T - 1) * scale, mask=mask)
