import pytest
import torch

from capsroute.inference import ClusteringFilter, Examples


def blobs(counts, batch=16, seed=0, labels=None):
    """Examples around far-apart centres, `counts` of each; batches in random order."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.cat([torch.full((count,), place) for place, count in enumerate(counts)])
    columns = centre[:, None] * torch.tensor([[5.0, -3.0, 8.0]]) + 0.1 * torch.randn(
        len(centre), 3, generator=generator
    )
    labels = torch.zeros_like(centre) if labels is None else labels
    order = torch.randperm(len(centre), generator=generator)
    columns, labels, centre = columns[order].double(), labels[order], centre[order]
    parts = [Examples(c, torch.zeros(len(c), 2), l) for c, l in zip(columns.split(batch), labels.split(batch))]
    return (lambda: iter(parts)), centre


@pytest.mark.parametrize("method", ["kmeans", "gaussian_mixture"])
def test_drops_clusters_that_few_examples_belong_to(method):
    data, centre = blobs([60, 55, 5])
    chooser = ClusteringFilter(method, clusters=3, least_share=0.1)
    chooser.fit(data, 1)
    kept = torch.cat([chooser.keep(batch) for batch in data()])
    assert torch.equal(kept, centre < 2)


def test_classes_are_clustered_apart():
    """What is rare in one class is all there is of another."""
    labels = torch.cat([torch.zeros(65), torch.ones(60)]).long()
    data, _ = blobs([60, 65], labels=labels)
    chooser = ClusteringFilter(clusters=2, least_share=0.1)
    chooser.fit(data, 2)
    for batch in data():
        far = batch.columns[:, 2] > 4
        assert torch.equal(chooser.keep(batch), ~(far & (batch.labels == 0)))


def test_a_sample_finds_the_same_clusters():
    data, centre = blobs([600, 500, 60], batch=64)
    chooser = ClusteringFilter(clusters=3, least_share=0.15, sample=200)
    chooser.fit(data, 1)
    assert torch.equal(torch.cat([chooser.keep(batch) for batch in data()]), centre < 2)


def test_the_sample_is_so_large_and_drawn_from_everywhere():
    columns = torch.arange(1000, dtype=torch.float64)[:, None]
    labels = (torch.arange(1000) % 10 == 0).long()  # 900 and 100
    parts = [Examples(c, torch.zeros(len(c), 2), l) for c, l in zip(columns.split(64), labels.split(64))]
    drawn, of = ClusteringFilter(sample=150)._draw(lambda: iter(parts), 2)
    assert of.bincount().tolist() == [150, 100]
    assert len(drawn.unique()) == 250
    assert abs(drawn[of == 0].mean() - 500) < 5 * 260 / 150**0.5
    assert torch.equal(drawn[:, 0].long() % 10 == 0, of == 1)


def test_the_largest_cluster_is_never_an_outlier():
    data, _ = blobs([20, 19, 18])
    chooser = ClusteringFilter(clusters=3, least_share=0.9)
    chooser.fit(data, 1)
    assert 0 < sum(int(chooser.keep(batch).sum()) for batch in data()) < 57


def test_fewer_examples_than_clusters():
    data, _ = blobs([1, 1])
    chooser = ClusteringFilter(clusters=8, least_share=0.0)
    chooser.fit(data, 1)
    assert all(chooser.keep(batch).all() for batch in data())


@pytest.mark.parametrize("options", [{"method": "dbscan"}, {"clusters": 0}, {"sample": 0}, {"least_share": 1}])
def test_refuses_other_options(options):
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: expected"):
        ClusteringFilter(**options)
