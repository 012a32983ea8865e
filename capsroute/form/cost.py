"""What a path costs, from the bytes it moves and the products it makes: dispatch takes the cheaper one.

Rates are those of one H200 as measured; only their ratios matter. `capsroute bench grid` checks what is predicted here.
"""

import torch

from capsroute.form.sizes import MOST_CHILD, MOST_COLUMNS, MOST_POSE, Sizes, cdiv, power_of_2

MEMORY = 4.3e12  # bytes a second, a large copy
CORES = 132  # programs that run at once
NUMBER = 1e-9  # seconds of a program, for each number that it works on
WALK_LAUNCH = 3.5e-6  # seconds of a walk over few children, or of the step behind it
PRODUCT_LOOP = 0.14e-3, 3.3e-11  # seconds of an iteration made of matrix products: all its launches, and each number


def holds_samples(s: Sizes, iterations: int) -> bool:
    """Whether a program for each sample, which walks over its children alone, beats matrix products of all samples.

    Those use the whole chip, but stand in thirty small operators an iteration. Measured where parents and poses are
    padded to 16 and 16, 16 and 64, 128 and 16: 11, 26 and 90 ns a child and walk.

    >>> from capsroute.form.cost import Sizes, holds_samples
    >>> holds_samples(Sizes(32, 1152, 10, 1, 8, 16), 3), holds_samples(Sizes(1, 1152, 100, 1, 8, 16), 3)
    (True, False)
    """
    launches, number = PRODUCT_LOOP
    products = iterations * (launches + number * s.b * s.i * (s.j + s.a * s.k))
    return cdiv(s.b, CORES) * _of_sample(s, iterations) < products


def splits_samples(s: Sizes, iterations: int) -> bool:
    """Whether children of a sample are shared out among programs, four launches an iteration and back, rather than two.

    >>> from capsroute.form.cost import Sizes, splits_samples
    >>> splits_samples(Sizes(32, 8192, 2, 4, 4, 4), 3), splits_samples(Sizes(256, 32, 10, 1, 8, 16), 3)
    (True, False)
    """
    alone = _of_sample(s, iterations)
    return 4 * iterations * WALK_LAUNCH + s.b / CORES * alone < cdiv(s.b, CORES) * alone


def shares_children(s: Sizes) -> bool:
    """Whether a sample's children of self-routing are shared out among programs, which takes a launch more.

    >>> from capsroute.form.cost import Sizes, shares_children
    >>> shares_children(Sizes(1, 1152, 2, 6, 6, 6)), shares_children(Sizes(1, 32, 32, 6, 6, 6))
    (True, False)
    """
    return s.i * max(16, power_of_2(s.j)) * (0.3 + max(16, power_of_2(s.a * s.k)) / 40) * NUMBER > 2 * WALK_LAUNCH


def _of_sample(s: Sizes, iterations: int) -> float:
    """Seconds of one program that walks over a sample's children alone, there and back."""
    parents, pose = max(16, power_of_2(s.j)), max(16, power_of_2(s.a * s.k))
    walks = 2.25 * max(1, iterations - 1) * s.i * parents * (0.3 + pose / 40)
    steps = 2 * iterations * 1.5 * s.j * power_of_2(s.a) * power_of_2(s.k) * power_of_2(s.o)
    return (walks + steps) * NUMBER


def adds_in_halves(s: Sizes) -> bool:
    """Whether the gradient of children is added up in halves of bfloat16 rather than in float32: a quarter more code.

    Where votes would be small beside the children, as of few parents, that gradient is most of all memory.

    >>> from capsroute.form.cost import Sizes, adds_in_halves
    >>> adds_in_halves(Sizes(256, 1152, 2, 6, 6, 6)), adds_in_halves(Sizes(256, 32, 10, 1, 8, 16))
    (True, False)
    """
    return s.j * s.o < 4 * s.k


MOST_BESIDE = 1 << 13  # numbers of parents that a program holds next to 16 children and their logits


def walks_alone(s: Sizes) -> bool:
    """Whether walks over few children take one after the other: of many parents, 16 at once leave the registers.

    >>> from capsroute.form.cost import Sizes, walks_alone
    >>> walks_alone(Sizes(1, 32, 1000, 4, 4, 4)), walks_alone(Sizes(32, 1152, 1000, 1, 8, 16))
    (True, False)
    """
    parents = max(16, power_of_2(s.j)) * max(16, power_of_2(s.a * s.k))
    return parents > MOST_BESIDE and s.b * s.i <= 8 * CORES


SHARED_MEMORY, FREE = 227 << 10, 9 << 10  # bytes of a core, and what a program of a pass needs besides its tiles
PASS_TILE = 2e-8  # seconds of such a program, for each column (parent, o) of a tile of children
AROUND = 2  # tiles that could be walked over while a program starts and ends


def programs_of_pass(s: Sizes, tiles: int, chunks: int, columns: int, warps: int, held: int) -> int:
    """How many programs share out a pass of the loop, `tiles` of samples by `chunks` of children.

    They run in waves, as many at once as registers and the `held` bytes of shared memory allow, and the last wave takes
    as long as a full one. Programs that walk over fewer children fill it better; each of them leaves a partial sum.

    >>> from capsroute.form.cost import Sizes, programs_of_pass
    >>> [programs_of_pass(Sizes(512, 1152, 10, 1, 8, 16), 16, 288, 160, 2, kilobytes << 10) for kilobytes in (60, 80)]
    [384, 256]
    """
    registers = min(255, 60 + 5 * columns // 4)
    at_once = max(1, CORES * max(1, min(2048 // (registers * warps), SHARED_MEMORY // (held + FREE))))
    partial = 2 * 4 * s.b * s.j * s.a * s.o / MEMORY  # written and read

    def seconds(splits: int) -> float:
        walk = cdiv(chunks, splits)
        return cdiv(tiles * splits, at_once) * (walk + AROUND) * columns * PASS_TILE + splits * partial

    few = range(1, min(chunks, 128) + 1)  # splits, or tiles of a walk: of both large there is little to choose
    return tiles * min(sorted({*few, *(cdiv(chunks, walk) for walk in few)}), key=seconds)


PASSES = 0.04e-3, 0.155e-3  # seconds that the launches of the passes take more, for few parents and for many


def holds_votes(s: Sizes) -> bool:
    """Whether a program for each sample, which walks over its stored votes, beats passes over the whole batch.

    >>> from capsroute.form.cost import Sizes, holds_votes
    >>> holds_votes(Sizes(32, 32, 10, 1, 16, 32)), holds_votes(Sizes(128, 1152, 10, 1, 8, 16))
    (True, False)
    """
    many = s.j * max(16, power_of_2(s.o)) > MOST_COLUMNS
    return 2.2 * cdiv(s.b, CORES) * _votes(s) * NUMBER < PASSES[many]


def _votes(s: Sizes) -> int:
    """Numbers of a sample's votes, padded."""
    return s.i * power_of_2(s.j) * power_of_2(s.a * s.o)


MOST_STORED = 1 / 8  # of a GPU's memory: going back there are three tensors as large
TILED = 16, 32  # columns of a child and of a parent up to which a tile of transforms fits the registers of a warp
LEAST_ROWS = 16  # (sample, pose row) of a tile: of half as many, passes are the reading of transforms


def is_wide(a: int, k: int, o: int) -> bool:
    """Whether no kernel of a loop takes poses [a,k] of children and [a,o] of parents; their votes are better stored.

    Made anew they read all transforms in every question, which are larger than votes of few samples, and pass through a
    factor as large as votes of many.

    >>> from capsroute.form.cost import is_wide
    >>> is_wide(1, 32, 64), is_wide(1, 64, 64)
    (False, True)
    """
    return max(a, k) > MOST_CHILD or o > MOST_POSE


def loops_over_votes(s: Sizes, dtype: torch.dtype) -> bool:
    """Whether a loop over a list, whose poses its kernels take, is faster over stored votes.

    Kernels make 19 products of k numbers for each number of the votes; stored, those are moved 17 times. A tile of
    transforms of 32 and 64 columns is 32 KB, which few warps hold. One H200, three iterations and back, in kernels and
    over stored votes: 256x32 -> 8x64, batch 16, 0.46 and 0.18 ms; 1152x32 -> 10x64, batch 128, 4.8 and 3.6; 2048x32 ->
    8x64, batch 256, 13.0 and 9.9, but in bfloat16 1.4 and 10.1. Attention (0.25 and 0.26 ms), contractions and small
    layers stay with kernels, and few rows, of which kernels move little more.

    >>> import torch
    >>> from capsroute.form.cost import Sizes, loops_over_votes
    >>> [loops_over_votes(Sizes(16, 256, 8, 1, k, o), torch.float32) for k, o in ((32, 64), (16, 64), (16, 32))]
    [True, False, False]
    """
    wide = TILED[0] < s.k <= MOST_CHILD and s.a <= MOST_CHILD and TILED[1] < s.o <= MOST_POSE
    return wide and dtype != torch.bfloat16 and 2 * s.b * s.a > LEAST_ROWS and not holds_votes(s)


def votes_fit(s: Sizes, memory: int) -> bool:
    """Whether votes are stored on a GPU with so many bytes of memory.

    >>> from capsroute.form.cost import Sizes, votes_fit
    >>> [votes_fit(Sizes(batch, 256, 8, 1, 64, 128), 24 << 30) for batch in (16, 4096)]
    [True, False]
    """
    return 4 * s.b * s.i * s.j * s.a * s.o <= MOST_STORED * memory


VOTES_LAUNCHES = 6 * 3e-6  # seconds of six launches more
MOST_SPLIT = 1 << 13  # numbers of all children's votes for one parent, which a program holds


def splits_votes(s: Sizes) -> bool:
    """Whether parents of a sample, with their stored votes, are shared out among programs: a launch an iteration.

    >>> from capsroute.form.cost import Sizes, splits_votes
    >>> splits_votes(Sizes(32, 32, 32, 6, 6, 6)), splits_votes(Sizes(256, 32, 32, 4, 4, 4))
    (True, False)
    """
    if power_of_2(s.i) * power_of_2(s.a * s.o) > MOST_SPLIT:
        return False
    alone = 1.6 * _votes(s) * NUMBER
    return VOTES_LAUNCHES + alone / max(1, CORES // s.b) < alone


MOST_PARENTS = 1024  # which the softmax over parents holds
MOST_PRODUCTS = 64  # of a vote; code is unrolled over them, and twice as many take two minutes to compile
LEAST_VOTES = 1 << 24  # numbers; EM with 1152 children of 4x4, 32 parents, batch 32, has more: 0.44 ms so, 0.52 stored


def makes_votes(s: Sizes, shared: bool) -> bool:
    """Whether steps of EM and Heinsen routing make votes in registers, in every pass anew, rather than store them.

    That is for large layers of small poses over one set of transforms: nothing but a child is read then.

    >>> from capsroute.form.cost import Sizes, makes_votes
    >>> makes_votes(Sizes(20, 5184, 64, 4, 4, 4), True), makes_votes(Sizes(20, 512, 64, 4, 4, 4), True)
    (True, False)
    """
    fits = max(s.a * s.k, s.a * s.o) <= 32 and s.a * s.k * s.o <= MOST_PRODUCTS and s.j <= MOST_PARENTS
    return shared and fits and s.b * s.i * s.j * s.a * s.o >= LEAST_VOTES


MOST_FEW = 1 << 25  # products of all votes, a few microseconds outside the matrix unit
MOST_OF_CHILD = 1 << 12  # numbers of a child's transforms, padded, which a program holds whole
MOST_PARTS = 1 << 21  # numbers of the transforms' gradients, one for each sample


def few_products(s: Sizes) -> bool:
    """Whether a step of attention makes its products outside the matrix unit, whose tiles would be mostly padding.

    >>> from capsroute.form.cost import Sizes, few_products
    >>> few_products(Sizes(1, 8192, 2, 1, 16, 32)), few_products(Sizes(128, 800, 10, 4, 4, 4))
    (True, False)
    """
    if power_of_2(s.j) * power_of_2(s.k) * power_of_2(s.o) > MOST_OF_CHILD or s.a > 8:
        return False
    transforms = s.i * s.j * s.k * s.o
    return (s.b == 1 or s.b * transforms <= MOST_PARTS) and s.b * s.a * transforms <= MOST_FEW


STEPS = 15e-6  # seconds that two steps of attention in eight or nine launches take more than in five


def walks_samples(s: Sizes) -> bool:
    """Whether a program for each sample, which walks over its stored votes in all steps, beats many in each step.

    >>> from capsroute.form.cost import Sizes, walks_samples
    >>> walks_samples(Sizes(1, 32, 2, 1, 8, 16)), walks_samples(Sizes(1, 512, 2, 1, 8, 16))
    (True, False)
    """
    return 1.4 * cdiv(s.b, CORES) * _votes(s) * NUMBER < STEPS


def walks_columns(s: Sizes) -> bool:
    """Whether programs that have some parents and walk over all children are enough of them, and votes smaller than W.

    >>> from capsroute.form.cost import Sizes, walks_columns
    >>> walks_columns(Sizes(1, 512, 1000, 1, 8, 16)), walks_columns(Sizes(1, 8192, 10, 1, 8, 16))
    (True, False)
    """
    return s.b * s.a <= s.k and s.b * s.j >= CORES // 2 and s.a * s.o <= 256


MOST_PACKED = 128  # parents times columns of a pose, padded, that a program of a step holds


def attends_in_passes(s: Sizes) -> bool:
    """Whether passes of the loop make all steps of attention, rather than each step kernels of its own.

    They keep the coefficients that steps make three times. One H200, 800x6x6 -> 10, batch 128, TF32: two steps 712 us,
    and dynamic routing of as many iterations, which makes the same products in passes, 442. But a pass pads a parent's
    pose to sixteen columns, where a step fills sixteen with four children of 4x4: of poses as small as that
    only parents that no program of a step holds go in passes (timed at one size, 8192x4x4 -> 10 in bfloat16, where
    passes would take a fifth less).

    >>> from capsroute.form.cost import Sizes, attends_in_passes
    >>> attends_in_passes(Sizes(128, 800, 10, 6, 6, 6)), attends_in_passes(Sizes(256, 8192, 10, 4, 4, 4))
    (True, False)
    """
    return max(s.k, s.o) > 4 or max(4, power_of_2(s.j)) * max(4, power_of_2(s.o)) > MOST_PACKED


MOST_KEPT_ROWS = 4  # of eight, gradients take longer in bfloat16 (1.50 ms for 1.27), and little less in float32


def keeps_votes(s: Sizes) -> bool:
    """Whether iterations over few rows (sample, pose row) walk over stored votes rather than over the transforms.

    Three iterations and their derivative read or write W eleven times in passes, seven times where a program holds all
    parents; so three times, and votes, which are batch x a / k of W, five times, in no more launches. Passes read W for
    the matrix unit, too, which a few rows fill with padding. Gradients are made outside of it, one row after the other.

    >>> from capsroute.form.cost import Sizes, keeps_votes
    >>> [keeps_votes(Sizes(batch, 8192, 100, 1, 8, 16)) for batch in (1, 4, 8)]
    [True, True, False]
    >>> keeps_votes(Sizes(1, 8192, 1000, 4, 4, 4)), keeps_votes(Sizes(2, 8192, 1000, 2, 2, 4))
    (True, False)
    """
    return s.b * s.a <= min(s.k, MOST_KEPT_ROWS)


def adds_samples(s: Sizes) -> bool:
    """Whether each sample may leave its own gradient of shared transforms: a step multiplies those of all samples.

    >>> from capsroute.form.cost import Sizes, adds_samples
    >>> adds_samples(Sizes(256, 8192, 10, 1, 16, 32)), adds_samples(Sizes(256, 32, 100, 1, 16, 32))
    (True, False)
    """
    return s.b * s.j * s.k * s.o <= MOST_PARTS


MOST_ROWS = 32
CACHED = 3 << 20  # numbers of transforms whose copies in float32 stay in the cache


def few_rows(s: Sizes) -> bool:
    """Whether transforms that weigh all samples alike are read as they lie, rather than weighed, widened and turned.

    A matrix product wants them so: copies that ten passes over W make, where a kernel makes four. It pays where many
    rows (sample, pose row) read the copies, or where they stay in the cache.

    >>> from capsroute.form.cost import Sizes, few_rows
    >>> few_rows(Sizes(32, 8192, 100, 1, 16, 32)), few_rows(Sizes(256, 8192, 100, 1, 16, 32))
    (True, False)
    """
    return s.b * s.a <= MOST_ROWS and s.i * s.j * s.k * s.o > CACHED
