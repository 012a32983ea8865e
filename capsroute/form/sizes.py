"""Sizes of a problem, and how its numbers are multiplied; `launches` makes tiles of them."""

import functools
from typing import NamedTuple

import torch

from capsroute.form.dispatch import INTERPRETED, takes_tf32

MOST_COLUMNS = 256  # (parent, o) whose accumulators one program of the loop holds
MOST_CHILD, MOST_POSE = 32, 64  # rows or columns of a child in a loop, of any pose in any kernel
GRID_ROWS = 65_535  # of a grid of programs; of its columns there are 2^31 - 1


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up. Triton's own takes ten times as long, and is asked dozens of times a call."""
    return -(-a // b)


def power_of_2(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << (n - 1).bit_length()


class Sizes(NamedTuple):
    """Index letters of the capsule form."""

    b: int
    i: int
    j: int
    a: int
    k: int
    o: int


def sizes_of(u: torch.Tensor, W: torch.Tensor) -> Sizes:
    return Sizes(u.shape[0], u.shape[1], W.shape[1], u.shape[2], u.shape[3], W.shape[3])


def operand_dtype(*tensors: torch.Tensor) -> torch.dtype:
    """What matrix operands are rounded to: bfloat16 stays; float16, whose range gradients leave, is read as float32.

    Triton's interpreter multiplies no bfloat16.
    """
    for t in tensors:
        if t.dtype != torch.bfloat16:
            return torch.float32
    return torch.float32 if INTERPRETED else torch.bfloat16


def precision() -> str:
    """How float32 operands are multiplied: as TF32 where torch is told to, else as exactly as float32 allows."""
    return "tf32" if takes_tf32() else _in_parts()


def loop_precision() -> str:
    """As `precision`, for sums over all children: three TF32 products are exact enough there, and a quarter faster.

    Dynamic routing of 1152x8 -> 10x16, batch 128: 0.39 ms for 0.53; off by 1.7e-7, plain float32 by 4.7e-7.
    """
    found = precision()
    return "tf32x3" if found == "bf16x6" else found


def sums_dtype(*operands: torch.Tensor) -> torch.dtype:
    """Of sums over children that pass through shared transforms: float64 where float32 is multiplied in six products.

    Roundings of votes even out over the children; those of such a sum do not.
    """
    exact = operand_dtype(*operands) == torch.float32 and precision() == "bf16x6"
    return torch.float64 if exact else torch.float32


@functools.cache
def _in_parts() -> str:
    """Products of parts keep the digits of float32 on the matrix unit. Whole operands do not use it, and compile long.

    Three parts of bfloat16 are all of a number, and six of their products all but its last digit; Triton 3.6 has them.
    Two parts of TF32, where it does not, lack two digits, which sums of a few terms show.
    """
    if torch.version.hip is not None:
        return "ieee"
    from triton.backends.nvidia.compiler import CUDAOptions

    # The interpreter multiplies exactly, whatever it is told, and is not to be told this.
    known = "bf16x6" in CUDAOptions.allowed_dot_input_precisions and not INTERPRETED
    return "bf16x6" if known else "tf32x3"


def padded(s: Sizes) -> dict[str, int]:
    """Sizes of one pose, and what tiles are padded to."""
    return {
        "A": s.a, "K": s.k, "O": s.o,
        "AP": power_of_2(s.a), "KP": max(2, power_of_2(s.k)), "OP": max(16, power_of_2(s.o)),
    }  # fmt: skip
