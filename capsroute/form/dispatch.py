"""Kernels or plain torch: decided here for every operation, and nowhere else.

`auto` takes kernels where they apply, `torch` never does. `triton` insists: kernels wherever the algorithm has them.
Where no kernel can run at all (a CPU without Triton's interpreter) that is an error; so is a size or dtype that an
operation cannot take, unless it falls back to others that have kernels themselves. A part that is right without one (a
first step with equal coefficients is a matrix product) is no reason to complain.

How torch is told to multiply (TF32, autocast) is asked here too.
"""

import functools
import importlib.util
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

BACKENDS = ("auto", "torch", "triton")

TRITON_INSTALLED = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


# Reasons for plain torch that are no lack of a kernel.
SHARED = "transforms are shared by all children, so it is two matrix products"
ALIKE = "all samples have the same coefficients, so it is one matrix product"
NOT_NEEDED = (SHARED, ALIKE)

Reasons = Callable[..., list[str]]


class Kernels(NamedTuple):
    """What an operation runs, and why not."""

    forward: Callable
    reasons: Reasons
    backward: Callable | None


_kernels: dict[str, Kernels] = {}


def register_kernel(name: str, kernel: Callable, reasons: Reasons, backward: Callable | None = None) -> None:
    """Plug Triton kernels in for an operation; `reasons(*operands)` lists why they would not apply, if anything."""
    _kernels[name] = Kernels(kernel, reasons, backward)


def kernels_of(name: str) -> Kernels:
    """Those that are plugged in."""
    if name not in _kernels:
        _load_kernels()
    return _kernels[name]


def check_backend(backend: str) -> str:
    """The backend's name, or a ValueError that lists the choices."""
    if backend not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {backend!r}")
    return backend


def insists(backend: str) -> bool:
    """Whether plain torch is not to stand in for kernels."""
    return backend == "triton"


def reachable(device: torch.device) -> bool:
    """Whether kernels can run at all."""
    return TRITON_INSTALLED and (device.type == "cuda" or INTERPRETED)


def check_reachable(name: str, backend: str, device: torch.device) -> None:
    """Where kernels are insisted on they can run."""
    if insists(check_backend(backend)) and not reachable(device):
        raise ValueError(_refusal(name, _unreachable(device)))


def explain(name: str, *operands: Tensor | int | Sequence[int] | None) -> list[str]:
    """Why the Triton kernels of an operation do not apply to these operands; empty when they do.

    >>> import torch, capsroute as cr
    >>> u, W, q = torch.randn(2, 3, 1, 4), torch.randn(3, 5, 4, 6), torch.randn(2, 5, 1, 6)
    >>> cr.form.explain("agreement", u, W, q)
    ['operands are on cpu, the kernels need cuda']
    """
    device = _device(operands)
    if not reachable(device):
        return _unreachable(device)
    _load_kernels()
    return _kernels[name].reasons(*operands) if name in _kernels else [f"there is no kernel for {name}"]


def takes_kernels(name: str, backend: str, operands: Sequence, falls_back: bool = False) -> bool:
    """Whether kernels run; a ValueError where they are insisted on and cannot.

    `falls_back`: what stands in for the operation is made of others, which insist for themselves.
    """
    if backend != "auto" and check_backend(backend) == "torch":
        return False
    device = _device(operands)
    if not reachable(device):
        check_reachable(name, backend, device)
        return False
    found = _reasons(name, operands)
    if insists(backend) and not falls_back and not all(reason in NOT_NEEDED for reason in found):
        raise ValueError(_refusal(name, found))
    return not found


_known: dict[tuple, list[str]] = {}


def _reasons(name: str, operands: Sequence) -> list[str]:
    """`explain`, asked once for operands of these dtypes, shapes and strides, with TF32 and without."""
    if torch.compiler.is_compiling():
        return explain(name, *operands)
    asked: list = [name, takes_tf32()]
    for x in operands:
        if isinstance(x, Tensor):
            asked += (x.device, x.dtype, x.shape, x.stride())
        else:
            asked.append(tuple(x) if isinstance(x, list) else x)
    key = tuple(asked)
    found = _known.get(key)
    if found is None:
        if len(_known) >= 4096:  # batches of ever new sizes must not fill the memory
            _known.clear()
        found = _known[key] = explain(name, *operands)
    return found


# What `torch.backends.cuda.matmul` asks; through that it takes fifteen times as long, at every call of every operation.
_precision = getattr(torch._C, "_get_fp32_precision_getter", None)


def takes_tf32() -> bool:
    """Whether torch is told to multiply float32 as TF32; torch 2.6 to 2.8 knows one way to say so, later ones two."""
    if _precision is not None:
        return _precision("cuda", "matmul") == "tf32"
    matmul = torch.backends.cuda.matmul
    return matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32


def autocast_is_on(device: torch.device) -> bool:
    """torch itself raises for the meta device, where shapes are tried out without numbers."""
    return device.type != "meta" and torch.is_autocast_enabled(device.type)


def outside_autocast(method: Callable) -> Callable:
    """A method of an object with a `device` whose sums autocast would make in half precision."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not autocast_is_on(self.device):
            return method(self, *args, **kwargs)
        with torch.autocast(self.device.type, enabled=False):
            return method(self, *args, **kwargs)

    return called


def _device(operands: Sequence) -> torch.device:
    for operand in operands:
        if isinstance(operand, Tensor):
            return operand.device
    raise AssertionError("operands without a tensor")


def _unreachable(device: torch.device) -> list[str]:
    if device.type == "cuda" or INTERPRETED:
        return ["triton is not installed"]
    return [f"operands are on {device.type}, the kernels need cuda"]


def _refusal(name: str, reasons: list[str]) -> str:
    return f"backend='triton' does not apply to {name}: " + "; ".join(reasons)


def _load_kernels() -> bool:
    """Import the kernels, which plug themselves in. Not done with this module: Triton takes a second to import.

    A compiler that traced the import would not see what it plugged in, and do without kernels. What somebody plugged in
    before stays.
    """
    before = dict(_kernels)
    from capsroute.form import kernels  # noqa: F401

    _kernels.update(before)
    return True


# As `torch.compiler.assume_constant_result` does, which imports the compiler.
_load_kernels._dynamo_marked_constant = True  # type: ignore[attr-defined]
