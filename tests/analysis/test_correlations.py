"""Correlations and tuning curves of fast inference against loops over every pair of images."""

import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.analysis import (
    class_correlations,
    class_probabilities,
    gt_column_correlations,
    master_correlations,
    tuning_curves,
)
from tests.inference.brute_force import correlation, stored_coefficients
from tests.inference.networks import CLASSES, OneLayer, TwoLayers, make_batches, quiet_accumulate


@pytest.fixture(params=["max_min", "dynamic"])
def model(request):
    torch.manual_seed(0)
    model = OneLayer(request.param)
    model.score_kind = "length"
    return model


@pytest.fixture
def columns(model):
    """The ground-truth column of every image, and its label."""
    matrices, labels, _ = stored_coefficients(model, make_batches(), "capsules")
    return [matrix[:, label] for matrix, label in zip(matrices, labels)], labels


def test_figure_2_is_numpys_correlation_of_the_first_images(model, columns):
    result = gt_column_correlations(model, make_batches(), count=20)
    expected = np.array([[correlation(x, y) for y in columns[0][:20]] for x in columns[0][:20]])
    np.testing.assert_allclose(result.correlations.numpy(), expected, atol=1e-9)
    assert result.labels.tolist() == columns[1][:20].tolist()


def test_figure_3_is_the_mean_over_all_pairs_of_different_images(model, columns):
    result = class_correlations(model, make_batches())
    for one in range(CLASSES):
        for other in range(CLASSES):
            pairs = [
                correlation(x, y)
                for n, (x, a) in enumerate(zip(*columns))
                for m, (y, b) in enumerate(zip(*columns))
                if (a, b) == (one, other) and n != m
            ]
            assert float(result.correlations[one, other]) == pytest.approx(np.mean(pairs), abs=1e-9)
    assert result.counts.tolist() == np.bincount(columns[1]).tolist()


def test_figure_5_is_the_mean_correlation_with_every_image(model, columns):
    master = quiet_accumulate(model, make_batches())
    result = master_correlations(model, master, make_batches())
    for column in range(CLASSES):
        for label in range(CLASSES):
            own = [correlation(master["capsules"][:, column].numpy(), x) for x, y in zip(*columns) if y == label]
            assert float(result.correlations[column, label]) == pytest.approx(np.mean(own), abs=1e-9)


def test_figures_6_and_7_are_scores_and_their_class_means(model):
    models = {"dynamic": model, "uniform": cr.inference.with_coefficients(model, "uniform")}
    images, labels = (torch.cat(parts) for parts in zip(*make_batches()))
    single = class_probabilities(models, images, labels)
    curves = tuning_curves(models, make_batches())
    assert single.routings == curves.routings == ("dynamic", "uniform")
    for row, variant in enumerate(models.values()):
        with torch.no_grad():
            scores = variant(images).scores
        torch.testing.assert_close(single.probabilities[row], scores)
        for label in range(CLASSES):
            mean = scores[labels == label].double().mean(0)
            torch.testing.assert_close(curves.probabilities[row, label], mean, rtol=0, atol=1e-7)


def test_logits_become_probabilities(model):
    model.score_kind = "logit"
    images, labels = make_batches()[0]
    found = class_probabilities({"only": model}, images, labels).probabilities
    torch.testing.assert_close(found.sum(2), torch.ones(1, len(labels)))


def test_a_class_without_enough_images_is_an_error(model):
    images, labels = make_batches()[0]
    with pytest.raises(ValueError, match="expected at least 1 images of every class, got fewer of class 2"):
        tuning_curves({"only": model}, [(images[labels != 2], labels[labels != 2])])
    with pytest.raises(ValueError, match="expected at least 2 images of every class, got fewer of classes 0, 1, 2, 3"):
        class_correlations(model, [(images[:4], torch.arange(4))])


def test_a_model_without_class_columns_is_an_error():
    model = TwoLayers()
    model.num_classes = 7
    with pytest.raises(ValueError, match="expected a last routed layer with the classes as parents"):
        gt_column_correlations(model, make_batches(size=7))
