"""Which examples count when master coefficients are accumulated (Zhao et al. 2019, section 8 and appendix A, step 3).

A filter sees examples batch by batch and says which of them count: those similar to their class (step 3c), those of no
outlier cluster (step 3b), or those classified correctly, which is ours, not of the paper.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.extras import named_extra
from capsroute.inference.distributed_sums import gather_rows, process_rank, sum_over_processes
from capsroute.naming import check_one_of, make_named, options_of


class Examples(NamedTuple):
    """What a filter sees of a batch."""

    columns: Tensor  # [b, i] float64, the ground-truth column of each example; [b, 0] when there is no class layer
    scores: Tensor  # [b, classes]
    labels: Tensor  # [b]


Pass = Callable[[], Iterator[Examples]]  # each call goes through all examples of this process once


class Filter:
    """No filtering: every example counts. A subclass overrides `keep`, and `fit` if it has to look at all first."""

    name = "none"
    needs_columns = False
    needs_fit = False

    def fit(self, examples: Pass, num_classes: int) -> None:
        """Look at all examples, as often as needed, before any is kept."""

    def keep(self, examples: Examples) -> Tensor:
        """Which examples count: bool [b]."""
        return torch.ones_like(examples.labels, dtype=torch.bool)

    def config(self) -> dict[str, Any]:
        """Name and options, as plain data that `make_filter` takes back."""
        return {
            "name": self.name,
            **{option: getattr(self, option) for option in options_of(type(self))},
        }


class CorrectFilter(Filter):
    """Only examples whose own class has the largest score, by at least `margin`.

    >>> import torch
    >>> from capsroute.inference import CorrectFilter, Examples
    >>> scores = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.2, 0.8]])
    >>> CorrectFilter(margin=0.2).keep(Examples(torch.zeros(3, 0), scores, torch.tensor([0, 0, 0])))
    tensor([ True, False, False])
    """

    name = "correct"

    def __init__(self, margin: float = 0.0):
        if not 0 <= margin < math.inf:
            raise ValueError(f"margin: expected a number >= 0, got {margin!r}")
        self.margin = margin

    def keep(self, examples: Examples) -> Tensor:
        own = examples.labels[:, None]
        others = examples.scores.scatter(1, own, -torch.inf).amax(1)
        lead = examples.scores.gather(1, own).squeeze(1) - others
        return (lead > 0) & (lead >= self.margin)


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
        check_one_of("measure", measure, MEASURES)
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
    >>> from capsroute.inference.filters import row_similarity
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
    parts = [torch.zeros(num_classes, 1)] * 2
    for batch in examples():
        of_class = F.one_hot(batch.labels, num_classes).to(batch.columns.dtype).T  # [classes, b]
        found = (of_class @ batch.columns, of_class.sum(1, keepdim=True))
        parts = [total.to(more) + more for total, more in zip(parts, found)]
    sums, counts = sum_over_processes(parts)
    return sums / counts.clamp_min(1)


def _least_kept(similarity: Tensor, fraction: float) -> Tensor:
    """The similarity of the last example that is kept."""
    if len(similarity) == 0:
        return similarity.new_tensor(torch.inf)
    least = similarity.topk(math.ceil(fraction * len(similarity))).values[-1]
    # Kept examples are seen again, perhaps in other batches, where their similarity may differ by rounding.
    return least - 1e-6 * least.abs()


METHODS = ("kmeans", "gaussian_mixture")


class ClusteringFilter(Filter):
    """Cluster the ground-truth columns of each class and drop clusters that few of its examples belong to.

    method: "kmeans" or "gaussian_mixture" (diagonal covariances) of scikit-learn. clusters: a class. least_share: a
    cluster with a smaller share of its class is an outlier; the largest cluster never is. sample: of a larger class, so
    many examples chosen at random are clustered; the others belong to the cluster nearest to them. Needs one further
    pass over the examples.
    """

    name = "clustering"
    needs_columns = True
    needs_fit = True

    def __init__(
        self, method: str = "kmeans", clusters: int = 4, least_share: float = 0.1, sample: int = 2000, seed: int = 0
    ):
        check_one_of("method", method, METHODS)
        for option, value in (("clusters", clusters), ("sample", sample)):
            if value < 1:
                raise ValueError(f"{option}: expected a whole number >= 1, got {value!r}")
        if not 0 <= least_share < 1:
            raise ValueError(f"least_share: expected a number in [0, 1), got {least_share!r}")
        self.method, self.clusters, self.sample = method, clusters, sample
        self.least_share, self.seed = least_share, seed

    def fit(self, examples: Pass, num_classes: int) -> None:
        columns, labels = self._draw(examples, num_classes)
        self._models: dict[int, Any] = {}
        self._is_kept: dict[int, Tensor] = {}  # class -> bool [clusters]
        for label in range(num_classes):
            rows = columns[labels == label].cpu().numpy()
            if len(rows) == 0:
                continue
            model = self._model(min(self.clusters, len(rows)))
            found = torch.as_tensor(model.fit_predict(rows)).long()
            share = torch.bincount(found, minlength=self.clusters) / len(found)
            self._models[label] = model
            self._is_kept[label] = (share >= self.least_share) | (share == share.max())

    def keep(self, examples: Examples) -> Tensor:
        kept = torch.zeros_like(examples.labels, dtype=torch.bool)
        for label in examples.labels.unique().tolist():
            where = examples.labels == label
            found = torch.as_tensor(self._models[label].predict(examples.columns[where].cpu().numpy())).long()
            kept[where] = self._is_kept[label][found].to(kept.device)
        return kept

    @named_extra
    def _model(self, clusters: int) -> Any:
        if self.method == "kmeans":
            from sklearn.cluster import KMeans

            return KMeans(clusters, n_init=4, random_state=self.seed)
        from sklearn.mixture import GaussianMixture

        return GaussianMixture(clusters, covariance_type="diag", reg_covar=1e-4, random_state=self.seed)

    def _draw(self, examples: Pass, num_classes: int) -> tuple[Tensor, Tensor]:
        """At most `sample` examples of each class, all equally likely: those with the smallest random keys."""
        generator = torch.Generator().manual_seed(self.seed + process_rank())
        drawn: list[Tensor] = []  # columns, labels, keys
        for batch in examples():
            keys = torch.rand(len(batch.labels), generator=generator, dtype=torch.float64).to(batch.columns.device)
            rows = [batch.columns, batch.labels, keys]
            drawn = self._smallest_keys([torch.cat(pair) for pair in zip(drawn, rows)] if drawn else rows, num_classes)
        columns, labels, _ = self._smallest_keys([gather_rows(rows) for rows in drawn], num_classes)
        return columns, labels

    def _smallest_keys(self, drawn: list[Tensor], num_classes: int) -> list[Tensor]:
        _, labels, keys = drawn
        order = keys.argsort()
        place = F.one_hot(labels[order], num_classes).cumsum(0)  # [n, classes]
        place = place.gather(1, labels[order][:, None]).squeeze(1)  # 1 for the smallest key of its class
        chosen = order[place <= self.sample]
        return [rows[chosen] for rows in drawn]


_FILTERS: dict[str, type[Filter]] = {
    kind.name: kind for kind in (Filter, SimilarityFilter, ClusteringFilter, CorrectFilter)
}


def list_filters() -> list[str]:
    """The names that `filter=` takes.

    >>> from capsroute.inference import list_filters
    >>> list_filters()
    ['none', 'similarity', 'clustering', 'correct']
    """
    return list(_FILTERS)


def make_filter(filter: str | dict | Filter | None) -> Filter:
    """A filter from a name, from `{"name": ..., option: value}`, or the filter that is given; None filters nothing.

    >>> from capsroute.inference import make_filter
    >>> make_filter({"name": "similarity", "fraction": 0.5}).config()
    {'name': 'similarity', 'measure': 'pearson', 'fraction': 0.5, 'threshold': None}
    """
    if isinstance(filter, Filter):
        return filter
    return make_named("filter", _FILTERS, filter or "none", also=", or a Filter")
