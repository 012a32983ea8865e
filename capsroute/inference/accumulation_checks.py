"""What accumulation says about data and networks that cannot make sensible master coefficients."""

from __future__ import annotations

import math
import warnings

import torch
from torch import Tensor

__all__ = ["check_examples", "check_finite", "warn_if_equal", "warn_if_untrained"]


def check_examples(seen: Tensor, kept: Tensor, filter_name: str, every_class: bool) -> None:
    """There are examples (of every class, where columns belong to classes), also after filtering."""
    if not every_class:
        seen, kept = seen.sum()[None], kept.sum()[None]
    absent, emptied = ((counts == 0).nonzero().flatten().tolist() for counts in (seen, kept))
    if not bool(seen.any()):
        raise ValueError("batches: expected examples, got none")
    if absent:
        raise ValueError(f"batches: expected examples of every class, got none of {_name(absent)}")
    if emptied:
        which = f" of {_name(emptied)}; its column would be undefined" if every_class else ""
        raise ValueError(f"filter: {filter_name!r} removed every example{which}")


def check_finite(layer: str, means: Tensor) -> None:
    """No NaN or infinity got into the sums."""
    if not bool(torch.isfinite(means).all()):
        raise ValueError(f"model: layer {layer!r} gave coefficients that are NaN or infinite; look at its weights")


def warn_if_equal(layer: str, means: Tensor) -> None:
    """Say so when no child prefers any parent: fast routing would be uniform routing."""
    spread = means.amax(2) - means.amin(2)  # [g, i]
    if means.shape[2] > 1 and bool((spread <= 1e-6 * means.abs().amax(2)).all()):
        warnings.warn(
            f"layer {layer!r}: the coefficients of every child are equal, so fast routing is uniform routing. Has the "
            "network been trained? (The first iteration is always uniform.)",
            stacklevel=3,
        )


def warn_if_untrained(seen: Tensor, correct: Tensor) -> None:
    """Say so when the network classifies no better than the most frequent class would, within three deviations."""
    examples = float(seen.sum())
    chance = float(seen.max()) / examples
    if chance < 1 and float(correct) / examples <= chance + 3 * math.sqrt(chance * (1 - chance) / examples):
        warnings.warn(
            f"the network classifies {float(correct) / examples:.1%} of these {examples:.0f} examples correctly, no "
            f"better than chance ({chance:.1%}). Has it been trained?",
            stacklevel=3,
        )


def _name(classes: list[int]) -> str:
    return f"class {classes[0]}" if len(classes) == 1 else f"classes {', '.join(map(str, classes))}"
