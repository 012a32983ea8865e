"""How kernels are launched: grid, tiles, warps and stages, decided once per shape from a few rules, family by family.

Nothing is tuned at run time. The rules generalise sizes that were tuned on an H200 for 1152x8 -> 10x16; other shapes
were timed once at most.

Legend of the names that kernels are compiled with, in every folder: B I J A K O are the sizes of the capsule form; a P
behind one (AP KP OP JP DP NP FP) is that size padded to a power of two; a T or C (BT JT PT IC) how many samples,
parents, positions or children a tile holds; N before one (NCH NB NG NT) how many tiles a program walks over. R rows of
a tile, F = A * O numbers of a pose, G children side by side, SP partial sums read at once, NS stages of the
pipeline, DT the dtype of matrix operands. EVEN: no mask is needed. H WD HO WO KS STRIDE PAD: the map, its places and
its window.
"""

import functools
from typing import Any

import torch
import triton.language as tl

__all__ = ["planned", "products"]

planned = functools.lru_cache(maxsize=1024)


def products(dtype: torch.dtype, multiply: str) -> dict[str, Any]:
    """How a kernel multiplies its operands."""
    return {"DT": tl.bfloat16 if dtype == torch.bfloat16 else tl.float32, "PRECISION": multiply}
