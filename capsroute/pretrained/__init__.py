"""Small trained networks that come with the package; the README in each folder says how it was made."""

from __future__ import annotations

from pathlib import Path

__all__ = ["list_pretrained", "pretrained_folder"]

DEFAULT = "mnist-max-min"


def list_pretrained() -> list[str]:
    """Names of the networks that come with the package.

    >>> from capsroute.pretrained import list_pretrained
    >>> list_pretrained()
    ['mnist-max-min']
    """
    return sorted(path.parent.name for path in Path(__file__).parent.glob("*/config.json"))


def pretrained_folder(name: str = DEFAULT) -> Path:
    """A folder that `cr.load_model` reads; beside the weights lie its master coefficients, `master.safetensors`.

    >>> import capsroute as cr
    >>> from capsroute.pretrained import pretrained_folder
    >>> cr.load_model(pretrained_folder()).num_classes
    10
    """
    folder = Path(__file__).parent / name
    if not (folder / "config.json").is_file():
        raise ValueError(f"name: expected one of {', '.join(list_pretrained())}, got {name!r}")
    return folder
