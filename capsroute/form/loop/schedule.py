"""What a loop repeats, and how far back its gradients go."""

from typing import NamedTuple


class Schedule(NamedTuple):
    """Softmax or max-min over parents, from coefficients `first`.

    With a scale it is inverted attention: poses are normalised, and the last of them times the scale are the query.
    """

    iterations: int
    softmax: bool
    first: float
    lower: float
    upper: float
    stop_gradient: bool
    scale: float | None = None
    coefficients: bool = True  # whether the last are stored

    @property
    def norm(self) -> bool:
        return self.scale is not None

    @property
    def factor(self) -> float:
        return 1.0 if self.scale is None else self.scale
