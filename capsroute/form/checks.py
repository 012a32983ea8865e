"""What operands of the capsule form must look like, and the sentence a user reads when they do not."""

from collections.abc import Sequence
from numbers import Integral

from torch import Tensor

# The index letters of each operand; W's child axis may be 1, which means shared by all children.
LETTERS = {"c": "bij", "u": "biak", "W": "ijko", "q": "bjao"}


def check_operands(**operands: Tensor) -> None:
    """Every operand has its rank, sizes agree letter by letter, and all are on one device."""
    for name, tensor in operands.items():
        check_floating(name, tensor, f" [{','.join(LETTERS[name])}]")
    check_sizes(*[(name, tensor.shape) for name, tensor in operands.items()])
    check_same("device", **operands)


def check_floating(name: str, tensor: Tensor, shape: str = "") -> None:
    """A tensor of floating-point numbers: what is computed of whole ones would be cut off to whole ones."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise ValueError(f"{name}: expected a floating-point tensor{shape}, got {_describe(tensor)}")


def check_axes(name: str, axes: int | Sequence[int], x: Tensor) -> int | tuple[int, ...]:
    """One axis of x, or several, none of them twice: Python's own numbers, a tuple where a list was given."""
    several = axes if isinstance(axes, (tuple, list)) else (axes,)
    whole = all(isinstance(axis, Integral) and not isinstance(axis, bool) for axis in several)
    found = tuple(int(axis) for axis in several) if whole else ()
    count = max(1, x.dim())  # torch counts one axis where there is none
    known = bool(found) and all(-count <= axis < count for axis in found)
    if not known or len({axis % count for axis in found}) < len(found):
        raise ValueError(f"{name}: expected one or several of {count} axes, each once, got {axes!r}")
    return found if isinstance(axes, (tuple, list)) else found[0]


def check_sizes(*shapes: tuple[str, Sequence[int]]) -> None:
    """Every operand's shape has its rank, and sizes agree letter by letter."""
    sizes: dict[str, int] = {}
    for name, shape in shapes:
        letters = LETTERS[name]
        if len(shape) != len(letters):
            raise ValueError(f"{name}: expected {len(letters)} axes [{','.join(letters)}], got shape {tuple(shape)}")
        if name == "W" and shape[0] == 1:
            letters, shape = letters[1:], shape[1:]
        for letter, size in zip(letters, shape):
            if sizes.setdefault(letter, size) != size:
                owner = next(other for other, _ in shapes if letter in LETTERS[other])
                known, given = sizes[letter], ", ".join(f"{other} {tuple(shape)}" for other, shape in shapes)
                raise ValueError(f"{name}: axis {letter} has size {size}, but {owner} has {known} (shapes: {given})")


def check_same(attribute: str, **tensors: Tensor) -> None:
    """All tensors share the attribute (`device` or `dtype`)."""
    (first, reference), *rest = tensors.items()
    for name, tensor in rest:
        if getattr(tensor, attribute) != getattr(reference, attribute):
            raise ValueError(
                f"{name}: expected {attribute} {getattr(reference, attribute)} as {first} has, "
                f"got {getattr(tensor, attribute)}"
            )


def check_shape(name: str, tensor: Tensor, expected: tuple[int, ...], letters: str, shared: bool = False) -> None:
    """The tensor has exactly this shape; when `shared`, its first axis may be 1 instead."""
    axes = ",".join(letters).replace(letters[0], f"{letters[0]} or 1", 1) if shared else ",".join(letters)
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name}: expected a tensor [{axes}], got {_describe(tensor)}")
    # One size at a time: torch.compile finds no tuple in a list where its sizes may change.
    start = int(shared and tensor.dim() > 0 and tensor.shape[0] == 1)
    agree = all(have == want for have, want in zip(tensor.shape[start:], expected[start:]))
    if tensor.dim() != len(expected) or not agree:
        choices = [tuple(expected), (1, *expected[1:])] if shared else [tuple(expected)]
        wanted = " or ".join(map(str, choices))
        raise ValueError(f"{name}: expected shape {wanted} [{axes}], got {tuple(tensor.shape)}")


def _describe(value: object) -> str:
    return f"{value.dtype} tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
