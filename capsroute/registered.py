"""What layers and models return, made known to torch by name, so that exported programs can be saved and read again."""

from __future__ import annotations

from torch.utils import _pytree

__all__ = ["register_output"]


def register_output(kind: type) -> None:
    """Let `torch.export.save` write programs that return the named tuple `kind`."""
    _pytree._register_namedtuple(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
