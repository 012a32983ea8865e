"""The files of the trained networks that come with the package; `facts.json` in each folder says how it was made.

`capsroute/models/pretrained.py` reads them, `python -m tools.bundle RUN TAG` adds one.
"""

from pathlib import Path

from capsroute.models import pretrained_weights
from capsroute.naming import check_one_of

__all__ = ["DEFAULT", "pretrained_folder"]

DEFAULT = "mnist-max-min"


def pretrained_folder(tag: str = DEFAULT) -> Path:
    """A folder that `cr.load_model` reads, once the checksums of its files were found right.

    >>> import capsroute as cr
    >>> from capsroute.pretrained import pretrained_folder
    >>> cr.load_model(pretrained_folder()).num_classes
    10
    """
    known = {weights.tag: weights for weights in pretrained_weights()}
    check_one_of("tag", tag, known)
    for name in known[tag].files:
        known[tag].file(name)
    return known[tag].folder
