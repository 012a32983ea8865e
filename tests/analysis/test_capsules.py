"""Reconstructions, perturbations and separated digits against one decoder call at a time."""

import pytest
import torch

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


def test_bytes_are_measured_and_drawn_as_the_images_that_they_are():
    model = cr.create_model("capsnet_small", image_size=8)
    pixels = torch.randint(256, (2, 1, 8, 8), dtype=torch.uint8)
    given, same = (cr.analysis.reconstructions(model, x) for x in (pixels, pixels.float() / 255))
    assert torch.equal(given.errors, same.errors)
    tree = cr.analysis.parse_tree(model, pixels[0])
    (drawn,) = cr.analysis.draw_parse_tree(tree).axes[0].images
    assert torch.equal(torch.from_numpy(drawn.get_array().data), pixels[0, 0].float() / 255)
    shown = cr.analysis.robustness(model, pixels, torch.tensor([1, 2]), (0,), (0,), (1.0,))
    assert shown.rotation.shape == (1, 1)


def test_parts_without_labels_stay_as_they_are_and_labels_are_two():
    model, x = cr.create_model("capsnet_small", image_size=8), torch.rand(2, 1, 8, 8)
    parts = torch.rand(2, 2, 8, 8)
    assert torch.equal(cr.analysis.separation(model, x, parts=parts).parts, parts[:, :, None])
    with pytest.raises(ValueError, match=r"labels: expected two for each of 2 images, got \[2\]"):
        cr.analysis.separation(model, x, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="model: expected two classes or more, 'capsnet_small' has 1"):
        cr.analysis.separation(cr.create_model("capsnet_small", image_size=8, num_classes=1), x)


def test_numbers_in_bfloat16_are_saved_and_drawn(tmp_path):
    model = cr.create_model("capsnet_small", image_size=8).bfloat16()
    tree = cr.analysis.parse_tree(model, torch.rand(1, 8, 8).bfloat16())
    torch.testing.assert_close(tree.shares.sum((1, 2, 3)), torch.ones(10), atol=0.05, rtol=0)
    cr.analysis.draw_parse_tree(tree)
    tree.save(tmp_path / "tree.npz")
    assert (tmp_path / "tree.npz").is_file()
