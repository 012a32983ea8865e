import numpy as np
import pytest
import torch

from capsroute.inference import Examples, SimilarityFilter
from capsroute.inference.filters.similarity import row_similarity, standardised


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
def test_refuses_other_options(options, says):
    with pytest.raises(ValueError, match=says):
        SimilarityFilter(**options)
