"""What kernels of self-routing share: a softmax that knows "never" and "always", and its derivative."""

import triton
import triton.language as tl

from capsroute.form.loop.walks import LARGEST, bounded, normalised


@triton.jit
def or_one(total):
    """A divisor that is one where it would be zero."""
    return tl.where(total == 0, 1.0, total)


@triton.jit
def shares(logits, J, JP):
    """Shares [N, JP] of children with these logits [N, JP], in float32; of none of J parents where all are -inf."""
    return normalised(bounded(logits.to(tl.float32), 2), J, 2, 0.0, 1.0, JP)


@triton.jit
def slopes(logits, r, a, by_weights, by_shares, const, GIVEN: tl.constexpr):
    """Gradients of the logits [N, JP] and of activations a [N, 1], from those of the weights a r and (GIVEN) of r.

    Activations make the total, too, that scores are divided by: `const` is what that takes away.
    """
    by_a = tl.sum(by_weights * r, axis=1, keep_dims=True)
    slope = r * (a * (by_weights - by_a))
    if GIVEN:
        slope += r * (by_shares - tl.sum(by_shares * r, axis=1, keep_dims=True))
    # What is clamped has no gradient; nor has "never", even where a gradient of weights is not finite.
    x = logits.to(tl.float32)
    return tl.where((x > LARGEST) | (x == -float("inf")), 0.0, slope), by_a - const
