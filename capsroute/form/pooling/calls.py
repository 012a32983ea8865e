"""Routing pooling and its derivative as sequences of kernels."""

import torch
from torch import Tensor

from capsroute.form.contractions.kernels import WIDE
from capsroute.form.launch import kind_of, on_device
from capsroute.form.launches.pooled import pooling_launch, split_pooling_launch
from capsroute.form.pooling.kernels import pool, pool_backward
from capsroute.form.pooling.split import split_backward, split_forward

WIDEST, MOST_ITERATIONS = 1024, 4


def pooling_reasons(u: Tensor, parents: int, iterations: int) -> list[str]:
    """Why the kernels do not apply to children u [b,i,a,k], if anything."""
    found, width = [], u.shape[2] * u.shape[3]
    if u.numel() == 0:
        found.append("an operand is empty")
    if max(u.numel(), iterations * u.shape[0] * width) >= 1 << 31:
        found.append(
            "children, or sums of all iterations, are 2^31 numbers or more, beyond the kernels' 32-bit offsets"
        )
    if u.dtype == torch.float64:
        found.append(WIDE)
    if parents != 1:
        found.append(f"the kernels pool into one parent, here {parents}")
    if width > WIDEST:
        found.append(f"a pose has at most {WIDEST} numbers, here {width}")
    if iterations > MOST_ITERATIONS:
        found.append(f"queries of all iterations are held at once: at most {MOST_ITERATIONS}, here {iterations}")
    return found


@on_device
def pooling_forward(
    u: Tensor, parents: int, iterations: int, sharpness: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Poses [b,1,a,k], coefficients [b,i,1] of children u [b,i,a,k]; then sums and logarithms that backward needs."""
    (b, i, a, k), u = u.shape, u.contiguous()
    split = split_pooling_launch(b, i, a * k, iterations)
    if split is not None:
        return split_forward(split, u, iterations, sharpness)
    launch = pooling_launch(b, i, a * k, iterations)
    poses, c = u.new_empty((b, 1, a, k), dtype=torch.float32), u.new_empty((b, i, 1), dtype=torch.float32)
    sums, logs = poses.new_empty((iterations, b, a * k)), poses.new_empty((iterations, b))
    pool(launch, kind_of(u), u, poses, c, sums, logs, b, i, launch.tiles, sharpness)
    return poses, c, sums, logs


@on_device
def pooling_backward(
    grads: tuple[Tensor | None, ...], tensors: tuple[Tensor], kept: tuple[Tensor, ...], parents: int, iterations: int,
    sharpness: float,
) -> tuple[Tensor]:  # fmt: skip
    """The gradient by u [b,i,a,k]."""
    (g, g_c, *_), u, (poses, c, sums, logs) = grads, tensors[0].contiguous(), kept
    sizes = (*u.shape[:2], u.shape[2] * u.shape[3], iterations)
    g = torch.zeros_like(poses) if g is None else g.contiguous()
    by_c = c if g_c is None else g_c.contiguous()
    split = split_pooling_launch(*sizes)
    if split is not None:
        return (split_backward(split, u, g, by_c if g_c is not None else None, kept, iterations, sharpness),)
    launch = pooling_launch(*sizes)
    du = u.new_empty(u.shape)
    pool_backward(
        launch, kind_of(u, g, by_c, c, poses, sums, logs), u, g, by_c, c, poses, sums, logs, du, *u.shape[:2],
        launch.tiles, sharpness, GIVEN=g_c is not None,
    )  # fmt: skip
    return (du,)
