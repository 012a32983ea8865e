"""What a path costs, from the bytes it moves and the products it makes: dispatch takes the cheaper one.

Rates are those of one H200 as measured; only their ratios matter. `capsroute bench grid` checks what is predicted here.
"""

from capsroute.form.plan import Sizes

__all__ = ["holds_samples", "holds_votes"]

MEMORY = 4.3e12  # bytes a second, a large copy
LAUNCH = 4e-6  # seconds: a matrix product more, for every pass

CORES = 132  # programs that run at once
WALK = 1.2e-6  # seconds of a program: a tile of 4096 logits, their coefficients and what these weigh
TILE = 4096
PRODUCT_LAUNCHES = 90  # of a loop of three iterations made of matrix products over shared transforms, forward and back


def holds_samples(s: Sizes, iterations: int) -> bool:
    """Whether a program for each sample, which walks over its children alone, beats matrix products of all samples.

    Those use the whole chip, but stand in a hundred small operators.

    >>> from capsroute.form.cost import holds_samples
    >>> from capsroute.form.plan import Sizes
    >>> holds_samples(Sizes(32, 1152, 10, 1, 8, 16), 3), holds_samples(Sizes(1, 1 << 20, 100, 1, 16, 16), 3)
    (True, False)
    """
    tiles = s.i * max(s.j, s.a * s.k, 16) / TILE
    waves = -(-s.b // CORES)
    alone = 3 * iterations * waves * tiles * WALK
    planes = 20 * s.b * s.i * (s.j + s.a * s.k) * 4 / MEMORY
    return alone < PRODUCT_LAUNCHES * LAUNCH * iterations / 3 + iterations * planes


READ = 60e9  # bytes a second that one program reads of the cache and works on
LOOP_LAUNCHES = 7  # that are saved
VISITS = 9  # of all votes, forward and back


def holds_votes(s: Sizes) -> bool:
    """Whether a program for each sample, which walks over its stored votes, beats passes over the whole batch.

    >>> from capsroute.form.cost import holds_votes
    >>> from capsroute.form.plan import Sizes
    >>> holds_votes(Sizes(32, 32, 10, 1, 16, 32)), holds_votes(Sizes(128, 1152, 10, 1, 8, 16))
    (True, False)
    """
    votes = s.i * s.j * s.a * s.o * 4
    return VISITS * -(-s.b // CORES) * votes / READ < LOOP_LAUNCHES * LAUNCH
