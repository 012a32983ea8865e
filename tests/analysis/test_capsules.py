"""Reconstructions, perturbations and separated digits against one decoder call at a time. The adjusted Rand index:
scikit-learn's, sample by sample, with and without the ground."""

import pytest
import torch
from sklearn.metrics import adjusted_rand_score

import capsroute as cr
from capsroute.analysis import perturbations, reconstructions, separation
from tests.analysis.small import images, small


def answer(model, x):
    with torch.no_grad():
        return model(x)


@torch.no_grad()
def decoded(model, poses, name):
    """One picture from the one capsule `name` of poses [j,a,o], without the library's masking."""
    flat = torch.zeros(1, poses.numel(), dtype=poses.dtype)
    size = poses[0].numel()
    flat[0, name * size : (name + 1) * size] = poses[name].flatten()
    return torch.sigmoid(model.decoder.layers(flat)).view(model.input_shape)


def test_reconstructions_show_the_predicted_capsule():
    model, x = small(), images(5)
    labels = torch.arange(5) % 4
    result = reconstructions(model, x, labels)
    output = answer(model, x)
    for row in range(5):
        name = int(output.scores[row].argmax())
        expected = decoded(model, output.poses[row], name)
        torch.testing.assert_close(result.reconstructions[row], expected)
        assert int(result.predictions[row]) == name
        assert float(result.errors[row]) == pytest.approx(float(((expected - x[row]) ** 2).sum()))
    assert result.labels is labels


@pytest.mark.parametrize("classes", [None, torch.tensor([3, 0])])
def test_perturbations_move_one_number_at_a_time(classes):
    model, x = small(), images(2)
    result = perturbations(model, x, classes)
    assert result.steps.tolist() == pytest.approx([-0.25 + 0.05 * step for step in range(11)])
    output = answer(model, x)
    for row in range(2):
        name = int(output.scores[row].argmax()) if classes is None else int(classes[row])
        assert int(result.classes[row]) == name
        for dimension in range(4):
            for at, step in enumerate(result.steps):
                poses = output.poses[row].clone()
                poses[name, 0, dimension] += step
                torch.testing.assert_close(result.pictures[row, dimension, at], decoded(model, poses, name))


def test_separation_makes_each_picture_from_its_own_capsule():
    model, x = small(), images(4)
    result = separation(model, x)
    output = answer(model, x)
    for row in range(4):
        best = sorted(output.scores[row].topk(2).indices.tolist())
        assert result.classes[row].tolist() == best
        for at, name in enumerate(best):
            torch.testing.assert_close(result.pictures[row, at], decoded(model, output.poses[row], name))


@pytest.mark.parametrize("found", ["both", "swapped", "second only", "first only", "none"])
def test_labels_and_parts_follow_the_pictures(found):
    model, x = small(num_classes=10, class_pose=4), images(1)
    first, second = separation(model, x).classes[0].tolist()
    other, another = [name for name in range(10) if name not in (first, second)][:2]
    cases = {
        "both": ([first, second], [first, second]),
        "swapped": ([second, first], [first, second]),
        "second only": ([second, other], [other, second]),
        "first only": ([other, first], [first, other]),
        "none": ([other, another], [other, another]),
    }
    given, expected = cases[found]
    parts = torch.stack([torch.full((8, 8), float(name), dtype=torch.float64) for name in given])[None]
    result = separation(model, x, torch.tensor([given]), parts)
    assert result.labels[0].tolist() == expected
    assert result.parts[0, :, 0, 0, 0].tolist() == expected


def test_a_model_without_a_decoder_says_so():
    with pytest.raises(ValueError, match="model: expected one with a decoder, 'capsnet_small' has none"):
        perturbations(small(decoder=None), images(1))


@pytest.mark.parametrize(("true_parts", "found_parts"), [(4, 4), (2, 7), (1, 3), (3, 1), (1, 1)])
@pytest.mark.parametrize("ignore", [None, 0])
def test_equals_scikit_learn(true_parts, found_parts, ignore):
    generator = torch.Generator().manual_seed(true_parts * 10 + found_parts)
    true = torch.randint(0, true_parts, (5, 6, 7), generator=generator)
    found = torch.randint(0, found_parts, (5, 6, 7), generator=generator)
    found[0] = true[0] % found_parts  # one sample that agrees
    ours = cr.analysis.ari(true, found, ignore)
    for sample in range(5):
        counted = torch.ones_like(true[sample], dtype=torch.bool) if ignore is None else true[sample] != ignore
        if counted.any():
            theirs = adjusted_rand_score(true[sample][counted].numpy(), found[sample][counted].numpy())
            assert abs(ours[sample].item() - theirs) < 1e-12


def test_names_do_not_matter():
    true = torch.tensor([[0, 0, 1, 1, 2, 2]])
    assert cr.analysis.ari(true, torch.tensor([[7, 7, 3, 3, 5, 5]])).item() == 1


def test_nothing_to_divide_counts_as_one():
    assert cr.analysis.ari(torch.zeros(1, 9, dtype=torch.long), torch.arange(9).view(1, 9), ignore=0).item() == 1


def test_bad_input_is_refused_by_name():
    whole = torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"found: expected shape \[2, 4\] as true has, got \[2, 3\]"):
        cr.analysis.ari(whole, whole[:, :3])
    with pytest.raises(ValueError, match=r"true: expected whole numbers \[b,...\], got torch.float32"):
        cr.analysis.ari(whole.float(), whole)
