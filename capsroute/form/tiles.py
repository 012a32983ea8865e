"""How tiles of the capsule form lie in registers: the pieces that all kernels share.

Rows of a tile are (sample, pose row): r = b * AP + a. Columns are (child, k), four children at a time, in the order in
which one thread of a matrix accumulator holds them: two neighbouring columns of every eight, so that with

    column = group * 4 KP + pair * 8 + child * 2 + half        k = pair * 2 + half

a thread owns all k of a child and the sum over k never leaves it. Sizes in capitals with a P are padded to powers of
two: AP rows, KP >= 2 child columns, OP >= 16 parent columns.

Functions here are inlined into kernels, and what a kernel knows when it is compiled they know too.
"""

import triton
import triton.language as tl


@triton.jit
def rows_at(tile, B, A, AP, BT):
    """Sample and pose row of every row of a tile, and whether there is one [rows, 1]."""
    r = tl.arange(0, BT * AP)
    b, a = tile * BT + r // AP, r % AP
    return b, a, ((b < B) & (a < A))[:, None]


@triton.jit
def poses_at(b, a, rows, J, A, O, OP):
    """Where the first parent's pose lies in [b,j,a,o], in every row of a tile, and what there is: [rows, OP]."""
    o = tl.arange(0, OP)
    return b[:, None] * (J * A * O) + a[:, None] * O + o[None, :], rows & (o < O)[None, :]


@triton.jit
def transforms_at(W, i, k, I, J, K, O, OP):
    """Where the first parent's transforms of children i lie in W [i,j,k,o], and what there is: [(child, k), OP]."""
    o = tl.arange(0, OP)
    return W + i[:, None] * (J * K * O) + k[:, None] * O + o[None, :], ((i < I) & (k < K))[:, None] & (o < O)[None, :]


@triton.jit
def zeros(N, R, C):
    """N tiles of zeros [R, C]."""
    found = ()
    for _ in tl.static_range(N):
        found = found + (tl.zeros((R, C), tl.float32),)
    return found


@triton.jit
def columns(IC, KP, OPERAND32):
    """Child (of IC in the tile) and k of every column.

    OPERAND32 is the order in which the same registers are read as a 32-bit left operand of the next product.
    """
    n = tl.arange(0, IC * KP)
    group = n // (4 * KP)
    pair = (n // 8) % (KP // 2)
    if OPERAND32:
        child = n % 4
        half = (n // 4) % 2
    else:
        child = (n // 2) % 4
        half = n % 2
    return group * 4 + child, pair * 2 + half


@triton.jit
def child_of_tile(IC):
    """The child that each entry of a coefficient tile [rows, IC // 4, 4] belongs to."""
    return tl.arange(0, IC // 4)[None, :, None] * 4 + tl.arange(0, 4)[None, None, :]


@triton.jit
def sum_columns(x, R, IC, KP):
    """Sum over k: [R, IC * KP] -> [R, IC // 4, 4]."""
    x = tl.reshape(x, (R, IC // 4, KP // 2, 4, 2))
    return tl.sum(tl.sum(x, axis=4), axis=2)


@triton.jit
def spread(c, R, IC, KP):
    """Repeat over k: [R, IC // 4, 4] -> [R, IC * KP]."""
    return tl.reshape(tl.broadcast_to(c[:, :, None, :, None], (R, IC // 4, KP // 2, 4, 2)), (R, IC * KP))


@triton.jit
def sum_rows(x, BT, AP, IC):
    """Sum over the pose rows of each sample: [BT * AP, IC // 4, 4] -> [BT, IC // 4, 4]."""
    if AP > 1:
        x = tl.sum(tl.reshape(x, (BT, AP, IC // 4, 4)), axis=1)
    return x


@triton.jit
def per_row(c, BT, AP, IC):
    """Repeat over the pose rows of each sample: [BT, IC // 4, 4] -> [BT * AP, IC // 4, 4]."""
    if AP > 1:
        c = tl.reshape(tl.broadcast_to(c[:, None, :, :], (BT, AP, IC // 4, 4)), (BT * AP, IC // 4, 4))
    return c


@triton.jit
def ordered(U, R, IC, KP, DT):
    """Children as `weighted` wants them: in the order of a left operand, of which 32 bits have their own."""
    if DT == tl.float32:
        return tl.reshape(tl.permute(tl.reshape(U, (R, IC * KP // 8, 4, 2)), (0, 1, 3, 2)), (R, IC * KP))
    else:
        return U.to(DT)


@triton.jit
def weighted(c, U, R, IC, KP, DT):
    """`ordered` children times coefficients as the left operand of a product, made of the registers that hold them."""
    if DT == tl.float32:
        # Spread, then turned: beyond that Triton looks for no other product, which takes long of many parents.
        c = tl.broadcast_to(c[:, :, :, None, None], (R, IC // 4, 4, KP // 2, 2))
        return tl.reshape(tl.permute(c, (0, 1, 3, 4, 2)), (R, IC * KP)) * U
    else:
        return spread(c.to(DT), R, IC, KP) * U


@triton.jit
def agreed(Q, Wt, U, BT, AP, IC, KP, PRECISION):
    """Dot products of votes with a parent's poses Q [R, OP], of children U [R, IC * KP]: [BT, IC // 4, 4]."""
    dot = tl.dot(Q, tl.trans(Wt), input_precision=PRECISION)
    return sum_rows(sum_columns(dot * U, BT * AP, IC, KP), BT, AP, IC)


@triton.jit
def load(pointers, mask, EVEN):
    """A load whose mask disappears when the sizes fit the tiles."""
    if EVEN:
        return tl.load(pointers)
    else:
        return tl.load(pointers, mask=mask, other=0.0)


@triton.jit
def there(n, N):
    """Whether there is an n-th of N, as a mask [1, 1]."""
    return tl.zeros((1, 1), tl.int32) + n < N


# The exponential of a softmax is as exact as torch has it: the chip's own loses |x| roundings, and all below 1e-38.
LOG2E = tl.constexpr(1.4426950216293335)  # in float32
LOG2E_REST = tl.constexpr(1.9259629911266175e-08)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def exponential(x):
    """e^x for x of zero or less, -inf included; down to the smallest numbers that float32 has."""
    x = tl.maximum(x, -200.0, propagate_nan=tl.PropagateNan.ALL)  # a share of no number is none, and hides nothing
    power = x * LOG2E
    rest = tl.fma(x, LOG2E, -power) + x * LOG2E_REST
    small = power < -100
    found = tl.exp2(tl.where(small, power + 64, power)) * tl.where(small, 2.0**-64, 1.0)
    # Rounded here: fused into a sum over lanes it would be rounded for all lanes but its own, and sums would differ.
    return tl.fma(found, 1 + rest * LN2, 0.0)
