"""Keep what is similar to its class (Zhao et al. 2019, appendix A, step 3c)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from capsroute.inference.distributed_sums import gather_rows, sum_over_processes
from capsroute.inference.filters.base import Examples, Filter, Pass

MEASURES = ("pearson", "dot")
FRACTION = 0.8  # when neither a fraction nor a threshold is given


class SimilarityFilter(Filter):
    """Only examples whose ground-truth column is similar to the mean column of its class.

    measure: "pearson" (correlation) or "dot" (dot product). Kept are the most similar `fraction` of each class, or all
    that reach `threshold`. Needs two further passes over the examples (one for a threshold).
    """

    name = "similarity"
    needs_columns = True
    needs_fit = True

    def __init__(self, measure: str = "pearson", fraction: float | None = None, threshold: float | None = None):
        if measure not in MEASURES:
            raise ValueError(f"measure: expected one of {', '.join(MEASURES)}, got {measure!r}")
        if fraction is not None and threshold is not None:
            raise ValueError(f"fraction: expected either it or threshold, got {fraction!r} and {threshold!r}")
        if fraction is not None and not 0 < fraction <= 1:
            raise ValueError(f"fraction: expected a number in (0, 1], got {fraction!r}")
        self.measure, self.threshold = measure, threshold
        self.fraction = FRACTION if fraction is None and threshold is None else fraction

    def fit(self, examples: Pass, num_classes: int) -> None:
        self._means = _class_means(examples, num_classes)  # [classes, i]
        if self.fraction is None:
            assert self.threshold is not None
            self._least = self._means.new_full((num_classes,), self.threshold)
            return
        rows = [torch.stack([batch.labels.double(), self._similarity(batch)], 1) for batch in examples()]
        labels, similarity = gather_rows(torch.cat(rows)).unbind(1)  # [n], [n]: one number an example is all we keep
        least = [_least_kept(similarity[labels == label], self.fraction) for label in range(num_classes)]
        self._least = torch.stack(least)  # [classes]

    def keep(self, examples: Examples) -> Tensor:
        return self._similarity(examples) >= self._least[examples.labels]

    def _similarity(self, examples: Examples) -> Tensor:
        return row_similarity(examples.columns, self._means[examples.labels], self.measure)


def row_similarity(x: Tensor, y: Tensor, measure: str = "pearson") -> Tensor:
    """Pearson correlation or dot product of rows [b,i] and [b,i] -> [b]; a constant row correlates with nothing: 0.

    >>> import torch
    >>> from capsroute.inference.filters.similarity import row_similarity
    >>> row_similarity(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[6.0, 4.0, 2.0]])).round(decimals=4)
    tensor([-1.])
    """
    return ((x * y) if measure == "dot" else standardised(x) * standardised(y)).sum(1)


def standardised(rows: Tensor) -> Tensor:
    """Rows [n,i] with mean 0 and length 1, whose dot products are correlations; a constant row becomes 0."""
    centred = rows - rows.mean(1, keepdim=True)
    length = centred.norm(dim=1, keepdim=True)
    constant = length <= 1e-6 * rows.norm(dim=1, keepdim=True)
    return torch.where(constant, 0.0, centred / torch.where(constant, 1.0, length))


def _class_means(examples: Pass, num_classes: int) -> Tensor:
    parts = [torch.zeros(0)] * 2
    for batch in examples():
        if not parts[0].numel():
            parts = [
                batch.columns.new_zeros(num_classes, batch.columns.shape[1]),
                batch.columns.new_zeros(num_classes, 1),
            ]
        parts[0].index_add_(0, batch.labels, batch.columns)
        parts[1].index_add_(0, batch.labels, torch.ones_like(batch.columns[:, :1]))
    sums, counts = sum_over_processes(parts)
    return sums / counts.clamp_min(1)


def _least_kept(similarity: Tensor, fraction: float) -> Tensor:
    """The similarity of the last example that is kept."""
    if len(similarity) == 0:
        return similarity.new_tensor(torch.inf)
    least = similarity.topk(math.ceil(fraction * len(similarity))).values[-1]
    # Kept examples are seen again, perhaps in other batches, where their similarity may differ by rounding.
    return least - 1e-6 * least.abs()
