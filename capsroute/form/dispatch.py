"""Which implementation a contraction runs on, decided per call: `auto`, `torch` or `triton`.

A kernel that does not apply says why (`explain`); `auto` then falls back to torch, a forced backend raises.
"""

import importlib.util
import os
from collections.abc import Callable

import torch
from torch import Tensor

from capsroute.form.contractions import plain as reference

__all__ = ["BACKENDS", "applies", "check_backend", "choose", "explain", "register_kernel"]

BACKENDS = ("auto", "torch", "triton")

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None

# Elements of the one large factor that per-child transforms need at a time: 16 MiB in float32 stays near the cache.
CHUNK_ELEMENTS = 1 << 22

Reasons = Callable[..., list[str]]
_kernels: dict[str, tuple[Callable[..., Tensor], Reasons]] = {}


def register_kernel(name: str, kernel: Callable[..., Tensor], reasons: Reasons) -> None:
    """Plug a Triton kernel in for one contraction; `reasons(*operands)` lists why it would not apply, if anything."""
    _kernels[name] = (kernel, reasons)


def check_backend(backend: str) -> str:
    """The backend's name, or a ValueError that lists the choices."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    return backend


def explain(name: str, *operands: Tensor | int | tuple[int, ...] | None) -> list[str]:
    """Why the Triton kernel for a contraction does not apply to these operands; empty when it does.

    >>> import torch, capsroute as cr
    >>> u, W, q = torch.randn(2, 3, 1, 4), torch.randn(3, 5, 4, 6), torch.randn(2, 5, 1, 6)
    >>> cr.form.explain("agreement", u, W, q)
    ['operands are on cpu, the kernels need cuda']
    """
    device = next(operand.device.type for operand in operands if isinstance(operand, Tensor))
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return [f"operands are on {device}, the kernels need cuda"]
    if not TRITON_INSTALLED:
        return ["triton is not installed"]
    _load_kernels()
    if name not in _kernels:
        return [f"there is no kernel for {name}"]
    return _kernels[name][1](*operands)


_known: dict[tuple, bool] = {}


def applies(name: str, *operands: Tensor | int | tuple[int, ...] | None) -> bool:
    """Whether the kernel takes operands of these devices, dtypes and shapes; asked once for each."""
    if torch.compiler.is_compiling():
        return not explain(name, *operands)
    key = (name, *[(x.device.type, x.dtype, x.shape) if isinstance(x, Tensor) else x for x in operands])
    if key not in _known:
        if len(_known) >= 4096:  # batches of ever new sizes must not fill the memory
            _known.clear()
        _known[key] = not explain(name, *operands)
    return _known[key]


def _load_kernels() -> None:
    """Import the kernels, which plug themselves in. Not done with this module: Triton takes a second to import."""
    from capsroute.form import kernels  # noqa: F401


def choose(name: str, backend: str, *operands: Tensor | int) -> Tensor:
    """Run a contraction on the backend that is asked for, or on the best one that applies."""
    check_backend(backend)
    if backend != "torch":
        reasons = explain(name, *operands)
        if not reasons:
            return _kernels[name][0](*operands)
        if backend == "triton":
            raise ValueError(f"backend='triton' does not apply to {name}: " + "; ".join(reasons))
    result = getattr(reference, name)(*operands, chunk=_chunk(name, operands))
    return result.contiguous()  # the strides that compiled code is promised


def _chunk(name: str, operands: tuple) -> int | None:
    """How many children at a time keep the largest factor under CHUNK_ELEMENTS; None when nothing is that large."""
    if name == "grad_transforms":
        c, u, q, shared = operands
        batch, parents, rows, width = c.shape[0], c.shape[2], u.shape[2], min(u.shape[3], q.shape[3])
    else:
        W = operands[{"agreement": 1, "aggregate": 2, "grad_children": 1}[name]]
        shared = W.shape[0] == 1
        batch, rows = (
            operands[0].shape[0],
            operands[1 if name == "aggregate" else 2 if name == "grad_children" else 0].shape[2],
        )
        parents, width = W.shape[1], min(W.shape[2], W.shape[3])
    per_child = batch * rows * parents * width
    return None if shared or per_child == 0 else max(1, CHUNK_ELEMENTS // per_child)
