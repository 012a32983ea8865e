"""A program that holds a sample: what it reads of children, parents and transforms, and its walks over the children.

Of `loop.shared`, and of `attention.shared`; `loop.resident` normalises the same way.
"""

import triton
import triton.language as tl

from capsroute.form.attention.kernels import operand
from capsroute.form.loop.max_min import extremes, parts, shares, slope, stretched, summed
from capsroute.form.tiles import exponential

SMALL = tl.constexpr(2.0**-80)
LARGEST = tl.constexpr(3.4028234663852886e38)  # of float32


@triton.jit
def transforms(W, j, J, K, O, KP, OP):
    """W of parents j [JC, 1]: [JC, 1, KP, OP]."""
    j, k = j[:, :, None, None], tl.arange(0, KP)[None, None, :, None]
    o = tl.arange(0, OP)[None, None, None, :]
    return tl.load(W + (j * K + k) * O + o, mask=(j < J) & (k < K) & (o < O), other=0.0).to(tl.float32)


@triton.jit
def through(x, Wt):
    """[JC, AP, KP] -> [JC, AP, OP]."""
    return tl.sum(x[:, :, :, None] * Wt, axis=2)


@triton.jit
def back(x, Wt):
    """[JC, AP, OP] -> [JC, AP, KP]."""
    return tl.sum(x[:, :, None, :] * Wt, axis=3)


@triton.jit
def across(x, y):
    """[JC, AP, KP] and [JC, AP, OP], multiplied and summed over pose rows: [JC, KP, OP], a gradient by transforms."""
    return tl.sum(x[:, :, :, None] * y[:, :, None, :], axis=1)


@triton.jit
def together(part, mask, S, size, SP):
    """S partial sums, `size` from one to the next, in a fixed order: as `mask`, [JC, AP, KP]."""
    total = tl.zeros(mask.shape, tl.float32)
    for first in range(0, S, SP):
        share = first + tl.arange(0, SP)[:, None, None, None]
        total += tl.sum(tl.load(part[None] + share * size, mask=mask[None] & (share < S), other=0.0), axis=0)
    return total


@triton.jit
def poses_of(j, stride, A, N, AP, NP, J):
    """Where the poses of parents j [JC, 1] lie, `stride` from one to the next, and which there are: [JC, AP, NP]."""
    a, n = tl.arange(0, AP)[None, :, None], tl.arange(0, NP)[None, None, :]
    return j[:, :, None] * stride + a * N + n, (j[:, :, None] < J) & (a < A) & (n < N)


@triton.jit
def children(u, b, i0, I, F, FP, IC):
    """A tile of a sample's children [IC, FP]."""
    i, f = i0 + tl.arange(0, IC)[:, None], tl.arange(0, FP)[None, :]
    return tl.load(u + (b * I + i) * F + f, mask=(i < I) & (f < F), other=0.0)


@triton.jit
def total_of(u, b, start, stop, I, F, FP, IC):
    """The sum of a sample's children, from one to another: [1, FP]."""
    some = tl.zeros((IC, FP), tl.float32)
    for i0 in range(start, stop, IC):
        some += children(u, b, i0, I, F, FP, IC).to(tl.float32)
    return tl.sum(some, axis=0, keep_dims=True)


@triton.jit
def parents(x, stride, J, F, JP, FP, DT, PRECISION):
    """All parents of a sample [JP, FP], as an operand."""
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    return operand(tl.load(x + j * stride + f, mask=(j < J) & (f < F), other=0.0).to(tl.float32), DT, PRECISION)


@triton.jit
def raised(x, DT, PRECISION):
    """An operand x [JP, FP] as it is to be multiplied, and a factor of the products.

    Where float32 is multiplied in parts, the lower ones of numbers below 2^-109 are lost: those are raised by a power
    of two. The gradient of parents is of that kind where transforms are 1e-20.
    """
    if DT == tl.float32 and PRECISION != "tf32":
        low = tl.max(tl.max(tl.abs(x), axis=1), axis=0) < SMALL
        return x * tl.where(low, 1.0 / SMALL, 1.0), tl.where(low, SMALL, 1.0)
    else:
        return x, 1.0


@triton.jit
def add_raised(total, x, y, factor, DT, PRECISION):
    """total + x y, of which one is `raised`."""
    if DT == tl.float32 and PRECISION != "tf32":
        return total + tl.dot(x, y, input_precision=PRECISION) * factor
    elif y.shape[0] > 256:  # a small product of long rows: each warp has its own part of them
        N: tl.constexpr = y.shape[0] // 64
        x = tl.permute(tl.reshape(x, (x.shape[0], N, 64)), (1, 0, 2))
        return total + tl.sum(tl.dot(x, tl.reshape(y, (N, 64, y.shape[1])), input_precision=PRECISION), axis=0)
    else:
        return tl.dot(x, y, total, input_precision=PRECISION)


@triton.jit
def with_prior(logits, prior, at, mask, SOFTMAX):
    """Logits, and a prior of theirs, if there is one (SOFTMAX 2).

    One of +inf is "always": beside the largest number there is nothing else has a share, and unlike infinity it can be
    subtracted from itself.
    """
    if SOFTMAX == 2:
        logits = bounded(logits + tl.load(prior + at, mask=mask, other=0.0).to(tl.float32), SOFTMAX)
    return logits


@triton.jit
def bounded(logits, SOFTMAX):
    """Logits that have their prior already."""
    if SOFTMAX == 2:
        logits = tl.minimum(logits, LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return logits


@triton.jit
def reached(high, SOFTMAX):
    """The largest logit; zero where all are -inf, which may have a prior."""
    if SOFTMAX == 2:
        high = tl.where(high == -float("inf"), 0.0, high)
    return high


@triton.jit
def or_one(total, SOFTMAX):
    """The sum of exponentials, or one, where all were nothing."""
    if SOFTMAX == 2:
        total = tl.where(total == 0, 1.0, total)
    return total


@triton.jit
def moved(logits, slope, SOFTMAX):
    """The gradient of logits; those that are "always" do not move."""
    if SOFTMAX == 2:
        slope = tl.where(logits == LARGEST, 0.0, slope)
    return slope


@triton.jit
def unmoved(slope, prior, at, mask, SOFTMAX):
    """As `moved`, where logits are not made again: their prior says which are "always"."""
    if SOFTMAX == 2:
        always = tl.load(prior + at, mask=mask, other=0.0).to(tl.float32) == float("inf")
        slope = tl.where(always, 0.0, slope)
    return slope


@triton.jit
def _real(J, JP, AXIS):
    """Whether there is a parent, along an axis of [IC, JP] or [JP, IC]."""
    j = tl.arange(0, JP)
    return (j[None, :] if AXIS == 1 else j[:, None]) < J


@triton.jit
def normalised(logits, J, SOFTMAX, lower, upper, JP, AXIS=1):
    """Coefficients [IC, JP] from logits: softmax or max-min over parents; zero where there is no parent.

    With AXIS 0 both are [JP, IC]. SOFTMAX 2: a child whose logits are all -inf gives nothing to anyone.
    """
    real = _real(J, JP, AXIS)
    if SOFTMAX:
        high = tl.max(tl.where(real, logits, -float("inf")), axis=AXIS, keep_dims=True)
        high = reached(high, SOFTMAX)
        e = exponential(tl.where(real, logits - high, -float("inf")))
        return e / or_one(tl.sum(e, axis=AXIS, keep_dims=True), SOFTMAX)
    else:
        high, low = extremes(logits, real, AXIS)
        return tl.where(real, stretched(logits, high, low, lower, upper), 0.0)


@triton.jit
def slopes(logits, c, g, J, SOFTMAX, lower, upper, JP, AXIS=1):
    """The gradient of the logits [IC, JP] from that of the coefficients; [JP, IC] with AXIS 0."""
    real = _real(J, JP, AXIS)
    g = tl.where(real, g, 0.0)
    if SOFTMAX:
        return moved(logits, c * (g - tl.sum(c * g, axis=AXIS, keep_dims=True)), SOFTMAX)
    else:
        high, low = extremes(logits, real, AXIS)
        each = shares(summed(parts(logits, g, high, low, real), AXIS))
        return tl.where(real, slope(logits, g, high, low, each, lower, upper), 0.0)


@triton.jit
def add_product(total, x, U, G, IC, JP, FP, PRECISION):
    """total [G, JP, FP], or [JP, FP], and the sums of children U [IC, FP] with weights x [IC, JP], in G parts.

    A product as small as [16, 16] is work for two warps: all others would make the same again. So each has its own.
    """
    if G == 1:
        x = tl.trans(x)
    else:
        x = tl.permute(tl.reshape(x, (G, IC // G, JP)), (0, 2, 1))
        U = tl.reshape(U, (G, IC // G, FP))
    if total.dtype == tl.float64:
        return total + tl.dot(x, U, input_precision=PRECISION).to(tl.float64)
    else:
        return tl.dot(x, U, total, input_precision=PRECISION)


@triton.jit
def no_sums(G, JP, FP, DT, PRECISION):
    """Where `add_product` starts.

    In float64 where float32 is multiplied in six products, as `sizes.sums_dtype`.
    """
    WIDE: tl.constexpr = tl.float64 if DT == tl.float32 and PRECISION == "bf16x6" else tl.float32
    if G == 1:
        return tl.zeros((JP, FP), WIDE)
    else:
        return tl.zeros((G, JP, FP), WIDE)


@triton.jit
def whole(total, G):
    """The parts of `add_product` together: [JP, FP]."""
    if G == 1:
        return total
    else:
        return tl.sum(total, axis=0)


@triton.jit
def walk(u, c, Y, b, I, J, store, lower, upper, SOFTMAX, F, FP, JP, IC, G, DT, PRECISION, start=0, stop=None,
         prior=None, p_i=0):  # fmt: skip
    """Over a sample's children: coefficients from the agreement with Y [JP, FP], kept if asked; their sums [JP, FP].

    Over all of them, or from one to another. The prior [i,j] of logits has p_i numbers from one child to the next.
    """
    total = no_sums(G, JP, FP, DT, PRECISION)
    for i0 in range(start, I if stop is None else stop, IC):
        U = operand(children(u, b, i0, I, F, FP, IC), DT, PRECISION)
        i, j = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        logits = tl.dot(U, tl.trans(Y), input_precision=PRECISION)
        logits = with_prior(logits, prior, i * p_i + j, (i < I) & (j < J), SOFTMAX)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP)
        tl.store(c + (b * I + i) * J + j, C, mask=(i < I) & (j < J) & store)
        total = add_product(total, operand(C, DT, PRECISION), U, G, IC, JP, FP, PRECISION)
    return whole(total, G)


@triton.jit
def load_sum(to, rest, at, mask):
    """What `store_sum` left."""
    found = tl.load(to + at, mask=mask, other=0.0).to(tl.float32)
    if rest is not None:
        found += tl.load(rest + at, mask=mask, other=0.0).to(tl.float32)
    return found


@triton.jit
def store_sum(to, rest, at, found, mask):
    """A sum to which more is added later: rounded, and what that cut off as the `rest`.

    Two halves of bfloat16 hold 16 digits of float32's 24, in half the memory of float32 beside the result.
    """
    tl.store(to + at, found, mask=mask)
    if rest is not None:
        tl.store(rest + at, found - found.to(to.dtype.element_ty).to(tl.float32), mask=mask)


@triton.jit
def walk_back(u, g_c, to, Y, X, b, I, J, given, more, lower, upper, SOFTMAX, F, FP, JP, IC, G, DT, PRECISION, STOP,
              start=0, stop=None, rest=None, prior=None, p_i=0, by_prior=None):  # fmt: skip
    """The derivative of `walk`: X [JP, FP] is the gradient of the sums; returns that by Y. The children's goes `to`.

    It is added to what is there, and its `rest`, if `more`. g_c [b,i,j] is the gradient of the coefficients, if
    `given`; if STOP they are constants of the sums, and only g_c reaches Y. by_prior [b,i,j]: that of the logits.
    """
    X, factor = raised(X, DT, PRECISION)
    total = no_sums(G, JP, FP, DT, PRECISION)
    for i0 in range(start, I if stop is None else stop, IC):
        U = operand(children(u, b, i0, I, F, FP, IC), DT, PRECISION)
        i, j = i0 + tl.arange(0, IC)[:, None], tl.arange(0, JP)[None, :]
        logits = tl.dot(U, tl.trans(Y), input_precision=PRECISION)
        logits = with_prior(logits, prior, i * p_i + j, (i < I) & (j < J), SOFTMAX)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP)
        g = tl.load(g_c + (b * I + i) * J + j, mask=(i < I) & (j < J) & given, other=0.0)
        if not STOP:
            g = add_raised(g, U, tl.trans(X), factor, DT, PRECISION)
        slope = slopes(logits, C, g, J, SOFTMAX, lower, upper, JP)
        if SOFTMAX == 2:
            tl.store(by_prior + (b * I + i) * J + j, slope, mask=(i < I) & (j < J))
        slope = operand(slope, DT, PRECISION)
        total = add_product(total, slope, U, G, IC, JP, FP, PRECISION)
        f = tl.arange(0, FP)[None, :]
        at, mask = (b * I + i) * F + f, (i < I) & (f < F)
        found = load_sum(to, rest, at, mask & more)
        found = add_raised(found, operand(C, DT, PRECISION), X, factor, DT, PRECISION)
        found = add_raised(found, slope, Y, 1.0, DT, PRECISION)
        store_sum(to, rest, at, found, mask)
    return whole(total, G)


@triton.jit
def walk_alone(u, c, Y, b, I, J, store, lower, upper, SOFTMAX, F, FP, JP, start, stop, prior=None, p_i=0):
    """As `walk`, one child after the other, without the matrix unit.

    Sixteen children side by side, as it wants them, with a thousand parents leave the registers.
    """
    j, total = tl.arange(0, JP)[:, None], tl.zeros((JP, FP), tl.float32)
    for i in range(start, stop):
        U = children(u, b, i, I, F, FP, 1).to(tl.float32)
        logits = with_prior(tl.sum(Y * U, axis=1, keep_dims=True), prior, i * p_i + j, j < J, SOFTMAX)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP, 0)
        tl.store(c + (b * I + i) * J + j, C, mask=(j < J) & store)
        total += C * U
    return total


@triton.jit
def walk_alone_back(u, g_c, to, Y, X, b, I, J, given, more, lower, upper, SOFTMAX, F, FP, JP, STOP, GIVEN, start, stop,
                    rest, prior=None, p_i=0, by_prior=None):  # fmt: skip
    """The derivative of `walk_alone`, as `walk_back`.

    Where no gradient of coefficients is GIVEN, none is read: other threads would read it than hold X and Y.
    """
    j, f = tl.arange(0, JP)[:, None], tl.arange(0, FP)[None, :]
    total = tl.zeros((JP, FP), tl.float32)
    for i in range(start, stop):
        U = children(u, b, i, I, F, FP, 1).to(tl.float32)
        logits = with_prior(tl.sum(Y * U, axis=1, keep_dims=True), prior, i * p_i + j, j < J, SOFTMAX)
        C = normalised(logits, J, SOFTMAX, lower, upper, JP, 0)
        g = tl.zeros((JP, 1), tl.float32) if STOP else tl.sum(X * U, axis=1, keep_dims=True)
        if GIVEN:
            g += tl.load(g_c + (b * I + i) * J + j, mask=(j < J) & given, other=0.0)
        slope = slopes(logits, C, g, J, SOFTMAX, lower, upper, JP, 0)
        if SOFTMAX == 2:
            tl.store(by_prior + (b * I + i) * J + j, slope, mask=j < J)
        total += slope * U
        at, mask = (b * I + i) * F + f, f < F
        found = load_sum(to, rest, at, mask & more)
        store_sum(to, rest, at, found + tl.sum(C * X + slope * Y, axis=0, keep_dims=True), mask)
    return total
