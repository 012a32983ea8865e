"""Partial results that programs left, added up in one launch: in a fixed order, scaled, in the dtype that is wanted."""

import torch
import triton.language as tl
from torch import Tensor

from capsroute.form.launch import LaunchSequence, in_turn, kernel, kind_of
from capsroute.form.launches.maps_and_rows import totals_launch


@kernel("N", "S", "scale")
def add_parts(parts, out, N, S, scale, SP: tl.constexpr, C: tl.constexpr):
    """A program holds C numbers, and walks over the S parts [S, N], SP at a time."""
    in_turn()
    n = (tl.program_id(0) * C + tl.arange(0, C))[None, :]
    found = tl.zeros((SP, C), tl.float32)
    for first in range(0, S, SP):
        p = first + tl.arange(0, SP)[:, None]
        found += tl.load(parts + p * N + n, mask=(p < S) & (n < N), other=0.0).to(tl.float32)
    tl.store(out + n, tl.sum(found, axis=0, keep_dims=True) * scale, mask=n < N)


def total(
    parts: Tensor, dtype: torch.dtype = torch.float32, scale: float = 1.0, run: LaunchSequence | None = None
) -> Tensor:
    """The sum of parts [s, ...], times the scale; nothing is launched where one part is that already.

    Parts that launches of a sequence leave are added up by one more of it.
    """
    count = parts.shape[0]
    if count == 1 and dtype == parts.dtype and scale == 1:
        return parts[0].contiguous()
    parts, numbers = parts.contiguous(), parts.numel() // count
    out, launch = parts.new_empty(parts.shape[1:], dtype=dtype), totals_launch(count, numbers)
    if run is None:
        add_parts(launch, kind_of(parts), parts, out, numbers, count, scale)
    else:
        run(add_parts, launch, parts, out, numbers, count, scale)
    return out
