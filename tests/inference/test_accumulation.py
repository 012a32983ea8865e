import math

import numpy as np
import pytest
import torch

import capsroute as cr
from capsroute.inference.accumulation import Containers, ground_truth_columns
from tests.inference.brute_force import (
    correlation,
    master_of_class_layer,
    master_of_ground_truth_columns,
    max_min_rows,
    softmax_rows,
    stored_coefficients,
)
from tests.inference.networks import CLASSES, OneLayer, TwoLayers, make_batches, quiet_accumulate

ROWS = {"max_min": max_min_rows, "dynamic": softmax_rows}


@pytest.fixture(params=["max_min", "dynamic"])
def routing(request):
    return request.param


@pytest.fixture
def model(routing):
    torch.manual_seed(3)
    return OneLayer(routing)


def test_equals_brute_force_that_stores_everything(model, routing):
    batches = make_batches()
    master = quiet_accumulate(model, batches)
    matrices, labels, scores = stored_coefficients(model, batches, "capsules")
    expected = master_of_class_layer(matrices, labels, ROWS[routing])
    np.testing.assert_allclose(master["capsules"].numpy(), expected, rtol=0, atol=1e-12)
    assert master.counts.tolist() == np.bincount(labels, minlength=CLASSES).tolist()
    assert master.how["accuracy"] == (scores.argmax(1) == labels).mean()
    assert master.how["normalisation"] == {"capsules": {"dynamic": "softmax"}.get(routing, routing)}


def test_ground_truth_columns_alone_are_another_matrix(model, routing):
    batches = make_batches()
    master = quiet_accumulate(model, batches, columns="ground_truth")
    matrices, labels, _ = stored_coefficients(model, batches, "capsules")
    expected = master_of_ground_truth_columns(matrices, labels, ROWS[routing])
    np.testing.assert_allclose(master["capsules"].numpy(), expected, rtol=0, atol=1e-12)
    assert not np.allclose(expected, master_of_class_layer(matrices, labels, ROWS[routing]), atol=1e-3)


def test_without_normalisation_columns_are_class_means(model):
    batches = make_batches()
    master = quiet_accumulate(model, batches, normalise="none")
    matrices, labels, _ = stored_coefficients(model, batches, "capsules")
    expected = master_of_class_layer(matrices, labels, lambda container: container)
    np.testing.assert_allclose(master["capsules"].numpy(), expected, rtol=0, atol=1e-12)


def test_an_earlier_iteration_is_that_iteration(model, routing):
    batches = make_batches()
    master = quiet_accumulate(model, batches, iteration=2)
    matrices, labels, _ = stored_coefficients(model, batches, "capsules", iterations=2)
    expected = master_of_class_layer(matrices, labels, ROWS[routing])
    np.testing.assert_allclose(master["capsules"].numpy(), expected, rtol=0, atol=1e-12)
    assert not torch.allclose(master["capsules"], quiet_accumulate(model, batches)["capsules"], atol=1e-4)


def test_bounds_of_max_min_are_the_routers():
    torch.manual_seed(1)
    model = OneLayer({"name": "max_min", "lower": 0.25, "upper": 0.75})
    master = quiet_accumulate(model, make_batches())
    assert 0.25 <= master["capsules"].min() < 0.4
    assert 0.6 < master["capsules"].max() <= 0.75


def test_batch_size_and_order_do_not_matter(model):
    images, labels = (torch.cat(parts) for parts in zip(*make_batches()))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(3))
    shuffled = list(zip(images[order].split(7), labels[order].split(7)))
    one, other = (quiet_accumulate(model, batches)["capsules"] for batches in (make_batches(), shuffled))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("padding", [0, 1])
def test_hidden_convolutional_layer_is_the_normalised_mean_of_all_examples_and_positions(routing, padding):
    torch.manual_seed(2)
    model, batches = TwoLayers(routing, padding=padding), make_batches(size=7)
    master = quiet_accumulate(model, batches)
    hidden, _, _ = stored_coefficients(model, batches, "stack.layers.0")
    np.testing.assert_allclose(master["stack.layers.0"].numpy(), ROWS[routing](hidden.mean(0)), rtol=0, atol=1e-12)
    matrices, labels, _ = stored_coefficients(model, batches, "stack.layers.1")
    expected = master_of_class_layer(matrices, labels, ROWS[routing])
    np.testing.assert_allclose(master["stack.layers.1"].numpy(), expected, rtol=0, atol=1e-12)


def test_hidden_layer_with_as_many_parents_as_classes_is_not_taken_for_the_class_layer():
    torch.manual_seed(2)
    model, batches = TwoLayers("max_min", hidden=CLASSES), make_batches(size=7)
    master = quiet_accumulate(model, batches, layers=["stack.layers.0"])
    hidden, _, _ = stored_coefficients(model, batches, "stack.layers.0")
    np.testing.assert_allclose(master["stack.layers.0"].numpy(), max_min_rows(hidden.mean(0)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("measure", ["pearson", "dot"])
def test_similarity_filter_equals_brute_force(model, routing, measure):
    batches = make_batches()
    master = quiet_accumulate(model, batches, filter={"name": "similarity", "measure": measure, "fraction": 0.5})
    matrices, labels, _ = stored_coefficients(model, batches, "capsules")
    keep = np.zeros(len(labels), bool)
    for label in range(CLASSES):
        own = np.flatnonzero(labels == label)
        mean = matrices[own, :, label].mean(0)
        compare = correlation if measure == "pearson" else np.dot
        similarity = np.array([compare(matrices[n, :, label], mean) for n in own])
        keep[own[np.argsort(-similarity)[: math.ceil(0.5 * len(own))]]] = True
    expected = master_of_class_layer(matrices, labels, ROWS[routing], keep)
    np.testing.assert_allclose(master["capsules"].numpy(), expected, rtol=0, atol=1e-12)
    assert int(master.counts.sum()) == keep.sum() < len(labels)


def test_correct_filter_equals_brute_force(model, routing):
    batches = make_batches(count=120)
    matrices, labels, scores = stored_coefficients(model, batches, "capsules")
    # Labels that the network agrees with about half of the time, so that no class is empty.
    labels = np.where(np.arange(len(labels)) % 2, scores.argmax(1), labels)
    missing = set(range(CLASSES)) - set(scores.argmax(1))
    images = torch.cat([images for images, _ in batches])
    if missing:
        pytest.fail(f"the network never says {missing}; choose another seed")
    batches = list(zip(images.split(16), torch.from_numpy(labels).split(16)))
    master = quiet_accumulate(model, batches, filter="correct")
    expected = master_of_class_layer(matrices, labels, ROWS[routing], scores.argmax(1) == labels)
    np.testing.assert_allclose(master["capsules"].numpy(), expected, rtol=0, atol=1e-12)


def test_takes_a_whole_set_of_images():
    torch.manual_seed(0)
    digits = cr.data.load("digits", split="validation")
    model = cr.create_model("capsnet_small", image_size=8, routing="max_min")
    whole = quiet_accumulate(model, digits)
    batches = cr.data.Batches(digits, 64, shuffle=True)
    torch.testing.assert_close(
        whole["class_capsules"], quiet_accumulate(model, batches)["class_capsules"], atol=1e-6, rtol=0
    )
    assert int(whole.counts.sum()) == len(digits)


def test_leaves_the_model_as_it_was(model):
    model.train()
    model.primary.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    quiet_accumulate(model, make_batches(), iteration=1)
    assert model.training
    assert not model.primary.training
    assert not model.capsules.routing._forward_hooks
    assert model.capsules.routing.iterations == 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class TestBadInput:
    def test_a_class_without_examples(self, model):
        batches = [(images[labels != 2], labels[labels != 2]) for images, labels in make_batches()]
        with pytest.raises(ValueError, match="none of class 2"):
            quiet_accumulate(model, batches)

    def test_no_examples(self, model):
        with pytest.raises(ValueError, match="expected examples, got none"):
            quiet_accumulate(model, [])

    @pytest.mark.parametrize("label", [-1, CLASSES])
    def test_labels_outside_the_range(self, model, label):
        [images, labels], *rest = make_batches()
        labels[5] = label
        with pytest.raises(ValueError, match=r"labels: expected 0 to 3 for 4 classes, got"):
            quiet_accumulate(model, [(images, labels), *rest])

    @pytest.mark.parametrize("strip", [lambda batch: batch[0], lambda batch: batch[:1]])
    def test_an_unlabelled_set(self, model, strip):
        with pytest.raises(ValueError, match="got no labels"):
            quiet_accumulate(model, [strip(batch) for batch in make_batches()])

    def test_two_labels_an_image(self, model):
        batches = [(images, labels[:, None].repeat(1, 2)) for images, labels in make_batches()]
        with pytest.raises(ValueError, match="labels: expected one class index an image"):
            quiet_accumulate(model, batches)

    def test_a_filter_that_removes_a_whole_class(self, model):
        with pytest.raises(ValueError, match=r"filter: 'similarity' removed every example of classes 0, 1, 2, 3"):
            quiet_accumulate(model, make_batches(), filter={"name": "similarity", "threshold": 1.1})

    def test_a_network_whose_coefficients_are_all_equal(self, model):
        torch.nn.init.zeros_(model.capsules.W)
        with pytest.warns(UserWarning, match="the coefficients of every child are equal"):
            master = cr.inference.accumulate(model, make_batches())
        assert master["capsules"].isfinite().all()

    def test_a_network_that_never_trained(self, model):
        with pytest.warns(UserWarning, match="no better than chance"):
            cr.inference.accumulate(model, make_batches())

    def test_weights_that_are_nan(self, model):
        with torch.no_grad():
            model.primary.poses.bias[0] = torch.nan
        with pytest.raises(ValueError, match="NaN"):
            quiet_accumulate(model, make_batches())

    def test_a_one_way_iterator_and_a_filter_that_needs_two_passes(self, model):
        with pytest.raises(ValueError, match="one-way iterator"):
            quiet_accumulate(model, iter(make_batches()), filter="similarity")

    @pytest.mark.parametrize("iteration", [0, 4, True, 1.5])
    def test_an_iteration_that_is_not_there(self, model, iteration):
        with pytest.raises(ValueError, match="iteration: layer 'capsules' has iterations 1 to 3"):
            quiet_accumulate(model, make_batches(), iteration=iteration)

    def test_a_model_that_is_fast_already(self, model):
        fast = cr.inference.with_coefficients(model, "uniform")
        with pytest.raises(ValueError, match="has given coefficients already"):
            quiet_accumulate(fast, make_batches())

    def test_a_layer_with_a_free_number_of_children(self):
        model = OneLayer("max_min", children=None)
        with pytest.raises(
            ValueError, match="'capsules' cannot have master coefficients: CapsuleLinear takes any number"
        ):
            quiet_accumulate(model, make_batches())

    @pytest.mark.parametrize(
        "options", [{"columns": "gt"}, {"normalise": "max"}, {"filter": "best"}, {"layers": ["top"]}, {"layers": []}]
    )
    def test_choices_that_do_not_exist(self, model, options):
        with pytest.raises(ValueError, match=f"^{next(iter(options))}: expected"):
            quiet_accumulate(model, make_batches(), **options)

    def test_iteration_of_layers_that_step_together(self):
        model = TwoLayers("inverted_attention", schedule="concurrent")
        with pytest.raises(ValueError, match="iteration: layers that step together"):
            quiet_accumulate(model, make_batches(size=7), iteration=1)


def test_sixty_thousand_float32_matrices_are_summed_as_exactly_as_in_float64():
    generator = torch.Generator().manual_seed(0)
    containers, naive, stored = Containers(2, 3, 2), torch.zeros(2, 3, 2), []
    for _ in range(120):
        c = torch.rand(500, 3, 2, generator=generator) * 0.1 + 0.9
        groups = torch.arange(500) % 2
        containers.add(c, groups)
        naive.index_add_(0, groups, c)
        stored.append(c.numpy())
    stored = np.concatenate(stored)
    exact = np.array(
        [[[math.fsum(stored[g::2, i, j].astype(np.float64)) for j in range(2)] for i in range(3)] for g in range(2)]
    )
    in_float64 = np.stack([stored[g::2].astype(np.float64).cumsum(0)[-1] for g in range(2)])
    error, float64_error, float32_error = (
        np.abs(sums / exact - 1).max() for sums in (containers.sums.numpy(), in_float64, naive.double().numpy())
    )
    assert error <= max(2 * float64_error, 1e-15)
    assert error < 1e-12 < 1e-6 < float32_error


def test_positions_are_averaged_in_float64():
    c = torch.rand(4, 5, 6, 3, 2)
    containers = Containers(1, 3, 2)
    containers.add(c, torch.zeros(4, dtype=torch.int64))
    torch.testing.assert_close(containers.sums[0], c.double().mean((1, 2)).sum(0), rtol=0, atol=1e-14)


def test_an_empty_share_of_a_batch_adds_nothing():
    containers = Containers(2, 3, 2)
    containers.add(torch.zeros(0, 3, 2), torch.zeros(0, dtype=torch.int64))
    assert not containers.sums.any()


def test_ground_truth_column_of_container_j_is_column_j():
    containers = torch.arange(3 * 4 * 3).view(3, 4, 3)
    master = ground_truth_columns(containers)
    assert all(torch.equal(master[:, j], containers[j, :, j]) for j in range(3))
