"""What a path costs, from the bytes it moves and the products it makes: dispatch takes the cheaper one.

Rates are those of one H200 as measured; only their ratios matter. `capsroute bench grid` checks what is predicted here.
"""

from capsroute.form.plan import Sizes

__all__ = ["register_pass", "repeats_transforms", "stored_pass", "stores_votes"]

MEMORY = 4.3e12  # bytes a second, a large copy
CACHE = 5e12  # bytes a second, transforms that every sample reads again
PRODUCTS = 15e12  # a second, in registers beside everything else
REGISTERS = 160  # numbers of one vote's operands and sums that a thread holds
LAUNCH = 4e-6  # seconds: a matrix product more, for every pass
SPILLED = 8  # times slower beyond that
MOST_NUMBERS = 40  # of a pose, whose sums are held at once even where votes are read


def register_pass(s: Sizes, shared: bool) -> float:
    """Seconds of a Gaussian pass that makes votes in registers: their products, or transforms read for every sample."""
    votes = s.b * s.i * s.j
    made = votes * s.a * s.k * s.o / PRODUCTS
    read = 0.0 if shared else votes * s.k * s.o * 4 / CACHE
    held = s.k * s.o + 4 * s.a * s.o
    return max(made, read) * (1 if held <= REGISTERS else SPILLED)


def stored_pass(s: Sizes) -> float:
    """Seconds of a Gaussian pass that reads stored votes, with its share of writing them (one pass in two)."""
    return LAUNCH + 1.5 * s.b * s.i * s.j * s.a * s.o * 4 / MEMORY


def stores_votes(s: Sizes, shared: bool, fits: bool) -> bool:
    """Whether Gaussian passes read votes that are stored; `fits`: whether they can be made in registers at all.

    >>> from capsroute.form.cost import stores_votes
    >>> from capsroute.form.plan import Sizes
    >>> stores_votes(Sizes(20, 5184, 64, 4, 4, 4), shared=True, fits=True)
    False
    >>> stores_votes(Sizes(128, 1152, 100, 1, 8, 16), shared=False, fits=True)
    True
    """
    return not fits or stored_pass(s) < register_pass(s, shared)


LOOP_READS = 12  # of the transforms by a fused loop of three iterations, forward and back
LOOP_LAUNCHES, PRODUCT_LAUNCHES = 15, 90  # of that loop; of the same made of matrix products over shared transforms
FEW_NUMBERS = 1 << 18


def repeats_transforms(s: Sizes) -> bool:
    """Whether a fused loop over a copy of shared transforms for each child beats matrix products over the one set.

    Those products are few, but stand in a hundred small operators: a layer must be large before that is worth it.
    Copies take no more memory than votes would, or next to none.

    >>> from capsroute.form.cost import repeats_transforms
    >>> from capsroute.form.plan import Sizes
    >>> repeats_transforms(Sizes(32, 1152, 10, 1, 8, 16)), repeats_transforms(Sizes(8, 512, 30_000, 1, 16, 16))
    (True, False)
    """
    copies = s.i * s.j * s.k * s.o
    if s.k > s.b * s.a and copies > FEW_NUMBERS:
        return False
    return LOOP_LAUNCHES * LAUNCH + LOOP_READS * copies * 4 / MEMORY < PRODUCT_LAUNCHES * LAUNCH
