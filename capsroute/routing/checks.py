"""What functions ask of their arguments, and the sentence a user reads when it is not so."""

import math
from numbers import Integral

import torch
from torch import Tensor

from capsroute.form.checks import check_shape
from capsroute.form.operations import is_transformed
from capsroute.votes import Votes


def check_at_least(name: str, value: int, least: int) -> None:
    """A whole number of at least this much."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        # numpy's whole numbers would end up in recipes and model files, which have none.
        hint = f"; write int({name})" if isinstance(value, Integral) and not isinstance(value, int) else ""
        raise ValueError(f"{name}: expected a whole number >= {least}, got {value!r}{hint}")


def check_finite(name: str, value: float) -> None:
    """A number that is neither NaN nor infinite."""
    # Not math.isfinite, which torch.compile cannot trace when it treats numbers as dynamic.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise ValueError(f"{name}: expected a finite number, got {value!r}")


def check_positive(name: str, value: float) -> None:
    """A finite number above zero."""
    check_finite(name, value)
    if value <= 0:
        raise ValueError(f"{name}: expected a number > 0, got {value!r}")


def check_bounds(lower: float, upper: float) -> None:
    """Two finite numbers, the first below the second."""
    check_finite("lower", lower)
    check_finite("upper", upper)
    if lower >= upper:
        raise ValueError(f"lower: expected less than upper, got lower={lower!r} and upper={upper!r}")


def matching(name: str, tensor: Tensor, votes: Votes, letters: str, shared: bool = False, widen: bool = True) -> Tensor:
    """The tensor in the votes' statistics dtype, or (widen=False) its own, after a look at its shape, dtype, device and
    at NaN.

    `letters` are its axes in the index letters of the capsule form; when `shared` the first may be 1.
    """
    sizes = {"b": votes.batch, "i": votes.children, "j": votes.parents, "a": votes.rows, "o": votes.columns}
    check_shape(name, tensor, tuple(sizes[letter] for letter in letters), letters, shared)
    wide = votes.statistics_dtype
    if not tensor.is_floating_point() or torch.promote_types(tensor.dtype, wide) != wide:
        raise ValueError(f"{name}: expected a floating-point tensor no wider than {wide}, got {tensor.dtype}")
    if tensor.device != votes.device:
        raise ValueError(f"{name}: expected a tensor on {votes.device}, as the votes are, got {tensor.device}")
    check_no_nan(name, tensor)
    return tensor.to(wide) if widen else tensor


def check_no_nan(name: str, tensor: Tensor) -> None:
    """One NaN here would reach every parent of its sample."""
    # A sum is NaN if one term is: one pass over memory, where isnan().any() makes a mask first.
    if can_look(tensor) and bool(tensor.sum().isnan()) and bool(tensor.isnan().any()):
        where = tensor.isnan().nonzero()[0].tolist()
        raise ValueError(f"{name}: expected no NaN, found one at {where} of shape {tuple(tensor.shape)}")


def check_probabilities(name: str, tensor: Tensor) -> None:
    """Numbers in [0, 1], give or take the rounding of half precision: logits are the likely mistake."""
    if can_look(tensor) and bool(((tensor < -0.01) | (tensor > 1.01)).any()):
        where = ((tensor < -0.01) | (tensor > 1.01)).nonzero()[0].tolist()
        raise ValueError(f"{name}: expected probabilities in [0, 1], got {tensor[tuple(where)].item()} at {where}")


def can_look(tensor: Tensor) -> bool:
    """Values are looked at only where that costs no synchronisation, and never inside compile, export, torch.func or a
    mode that sees every operation: `make_fx` records them, and fake tensors have no values."""
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or torch._C._len_torch_dispatch_stack():
        return False
    return type(tensor) in (Tensor, torch.nn.Parameter) and not is_transformed(tensor)


def one_hot(labels: Tensor, classes: int) -> Tensor:
    """Class numbers int64 [b] as a mask [b,classes], true at the class; numbers that are none of 0 to classes - 1 are
    an error where values can be looked at (on a CPU, outside of compile, export and torch.func).

    >>> import torch
    >>> from capsroute.routing.checks import one_hot
    >>> one_hot(torch.tensor([1, 0]), 2)
    tensor([[False,  True],
            [ True, False]])
    """
    if labels.dtype != torch.int64:
        raise ValueError(f"labels: expected class indices of dtype int64, got {labels.dtype}")
    if can_look(labels) and labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        found = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"labels: expected 0 to {classes - 1} for {classes} classes, got {found}")
    # Not F.one_hot, which looks at the values: torch.func cannot follow it there.
    return labels[:, None] == torch.arange(classes, device=labels.device)
