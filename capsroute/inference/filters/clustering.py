"""Drop outlier clusters of each class (Zhao et al. 2019, appendix A, step 3b)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from capsroute.extras import named_extra
from capsroute.inference.distributed_sums import gather_rows, process_rank
from capsroute.inference.filters.base import Examples, Filter, Pass

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
        if method not in METHODS:
            raise ValueError(f"method: expected one of {', '.join(METHODS)}, got {method!r}")
        for option, value in (("clusters", clusters), ("sample", sample)):
            if value < 1:
                raise ValueError(f"{option}: expected a whole number >= 1, got {value!r}")
        if not 0 <= least_share < 1:
            raise ValueError(f"least_share: expected a number in [0, 1), got {least_share!r}")
        self.method, self.clusters, self.least_share, self.sample, self.seed = (
            method,
            clusters,
            least_share,
            sample,
            seed,
        )

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
