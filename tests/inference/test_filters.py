import numpy as np
import pytest
import torch

from capsroute.inference import (
    ClusteringFilter,
    CorrectFilter,
    Examples,
    Filter,
    SimilarityFilter,
    list_filters,
    make_filter,
)
from capsroute.inference.filters import row_similarity, standardised
from tests.inference.networks import OneLayer, make_batches, quiet_accumulate


@pytest.mark.parametrize("name", list_filters())
def test_every_filter_is_made_from_its_own_config(name):
    assert make_filter(make_filter(name).config()).config() == make_filter(name).config()


@pytest.mark.parametrize("options", [{"columns": "ground_truth"}, {"iteration": 2}, {"normalise": "none"}])
@pytest.mark.parametrize("name", ["similarity", "clustering"])
def test_every_filter_goes_with_every_option(name, options):
    master = quiet_accumulate(OneLayer(), make_batches(), filter=name, **options)
    assert master["capsules"].isfinite().all()
    assert master.how["filter"]["name"] == name


def test_a_filter_of_ones_own():
    class First(Filter):
        name = "first of each batch"

        def keep(self, examples):
            return torch.arange(len(examples.labels)) < 4

    model, first = OneLayer(), make_batches()[0]
    master = quiet_accumulate(model, [first], filter=First())
    alone = quiet_accumulate(model, [(first[0][:4], first[1][:4])])
    torch.testing.assert_close(master["capsules"], alone["capsules"], rtol=0, atol=1e-6)
    assert master.how["filter"] == {"name": "first of each batch"}


def test_refuses_unknown_options():
    with pytest.raises(ValueError, match="'correct' has options margin, got least"):
        make_filter({"name": "correct", "least": 1})


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


SCORES = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.5, 0.1], [0.1, 0.3, 0.6], [0.4, 0.5, 0.1]])
LABELS = torch.tensor([0, 0, 1, 1])


@pytest.mark.parametrize(
    ("margin", "kept"),
    [(0.0, [True, False, False, True]), (0.2, [True, False, False, False])],
)
def test_keeps_what_is_right_by_a_margin(margin, kept):
    assert CorrectFilter(margin).keep(Examples(torch.zeros(4, 0), SCORES, LABELS)).tolist() == kept


@pytest.mark.parametrize("margin", [-0.1, float("nan"), float("inf")])
def test_refuses_other_margins(margin):
    with pytest.raises(ValueError, match="margin: expected a number >= 0"):
        CorrectFilter(margin)


def examples(columns, labels):
    columns, labels = torch.tensor(columns, dtype=torch.float64), torch.tensor(labels)
    return lambda: iter([Examples(columns, torch.zeros(len(labels), 2), labels)])


def test_pearson_is_numpys():
    x, y = torch.rand(5, 9, dtype=torch.float64), torch.rand(5, 9, dtype=torch.float64)
    expected = [np.corrcoef(a, b)[0, 1] for a, b in zip(x.numpy(), y.numpy())]
    np.testing.assert_allclose(row_similarity(x, y).numpy(), expected, atol=1e-12)


def test_a_constant_column_correlates_with_nothing():
    rows = standardised(torch.tensor([[0.1, 0.1, 0.1], [0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]))
    assert (rows[:2] == 0).all()
    assert rows[2].norm() == pytest.approx(1)


def test_keeps_the_most_similar_fraction_of_each_class():
    data = examples([[1, 2, 3], [1, 2, 4], [1, 2, 5], [2, 1, 0], [0, 1, 0], [0, 2, 1]], [0, 0, 0, 0, 1, 1])
    chooser = SimilarityFilter(fraction=0.75)
    chooser.fit(data, 2)
    assert chooser.keep(next(data())).tolist() == [True, True, True, False, True, True]


def test_keeps_all_above_a_threshold():
    data = examples([[1, 2, 3], [1, 2, 4], [3, 2, 1]], [0, 0, 0])
    chooser = SimilarityFilter(threshold=0.0)
    chooser.fit(data, 1)
    assert chooser.keep(next(data())).tolist() == [True, True, False]


def test_dot_product_prefers_large_columns():
    data = examples([[1, 2, 3], [10, 20, 30]], [0, 0])
    chooser = SimilarityFilter("dot", fraction=0.5)
    chooser.fit(data, 1)
    assert chooser.keep(next(data())).tolist() == [False, True]


def test_identical_examples_are_all_kept():
    data = examples([[1, 2, 3]] * 5, [0] * 5)
    chooser = SimilarityFilter(fraction=0.2)
    chooser.fit(data, 1)
    assert chooser.keep(next(data())).all()


@pytest.mark.parametrize(("off", "kept"), [(0.0, True), (5e-7, True), (1e-5, False)])
@pytest.mark.parametrize("sign", [1, -1])
def test_rounding_does_not_drop_the_last_that_is_kept(off, kept, sign):
    """Examples are seen again in other batches, where their similarity may differ by rounding, but not by more."""
    chooser = SimilarityFilter("dot", fraction=2 / 3)
    chooser.fit(examples([[sign, 1, 0], [sign, 2, 0], [sign, 3, 0]], [0, 0, 0]), 1)
    mean = torch.tensor([sign, 2.0, 0.0], dtype=torch.float64)
    last = torch.tensor([sign, 2.0, 0.0], dtype=torch.float64)
    nudged = last - off * (last @ mean) * mean / (mean @ mean)  # similar by that share less
    assert chooser.keep(next(examples([nudged.tolist()], [0])())).item() is kept


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"measure": "cosine"}, "measure: expected one of pearson, dot, got 'cosine'"),
        ({"fraction": 0}, r"fraction: expected a number in \(0, 1\], got 0"),
        ({"fraction": 0.5, "threshold": 0.5}, "fraction: expected either it or threshold"),
    ],
)
def test_similarity_refuses_other_options(options, says):
    with pytest.raises(ValueError, match=says):
        SimilarityFilter(**options)
