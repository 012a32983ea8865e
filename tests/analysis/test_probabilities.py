import pytest
import torch

import capsroute as cr
from capsroute.models import ModelOutput


class Says(torch.nn.Linear):
    """Takes its images for scores."""

    num_classes = 3

    def __init__(self):
        super().__init__(1, 1)

    def forward(self, images):
        return ModelOutput(images.flatten(1))


def test_rows_are_labels_and_columns_predictions():
    images, labels = torch.eye(3)[[0, 1, 1, 2]][:, :, None, None], torch.tensor([0, 0, 1, 2])
    counts = cr.analysis.confusions(Says(), [(images[:3], labels[:3]), (images[3:], labels[3:])]).counts
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]


def test_right_answers_are_not_drawn():
    numbers = cr.analysis.Confusions(torch.tensor([[90, 1], [2, 80]]))
    (image,) = cr.analysis.draw_confusions(numbers).axes[0].get_images()
    assert image.get_array().tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        (torch.tensor([1]), r"labels: expected one class index an image, int64 \[3\], got torch.int64 \(1,\)"),
        (torch.tensor([[1], [2], [3]]), r"labels: expected one class index an image, .* got torch.int64 \(3, 1\)"),
        (torch.tensor([1, 2, 10]), "labels: expected 0 to 9 for 10 classes, got 1 to 10"),
    ],
)
def test_labels_that_are_not_one_an_image_are_refused(labels, complaint):
    model, images = cr.create_model("capsnet_small", image_size=8), torch.rand(3, 1, 8, 8)
    for ask in (
        lambda: cr.analysis.confusions(model, [(images, labels)]),
        lambda: cr.analysis.tuning_curves({"as trained": model}, [(images, labels)]),
        lambda: cr.analysis.by_iterations(model, images, labels, (1,), repeats=1),
        lambda: cr.analysis.robustness(model, images, labels),
    ):
        with pytest.raises(ValueError, match=complaint):
            ask()


def test_no_images_and_no_models_are_refused():
    model, nothing = cr.create_model("capsnet_small", image_size=8), (torch.zeros(0, 1, 8, 8), torch.zeros(0).long())
    for ask in (cr.analysis.by_iterations, cr.analysis.robustness):
        with pytest.raises(ValueError, match="images: expected at least one, got none"):
            ask(model, *nothing)
    for ask in (cr.analysis.confusions, cr.analysis.gt_column_correlations):
        with pytest.raises(ValueError, match="batches: expected at least one image, got none"):
            ask(model, iter(()))
    with pytest.raises(ValueError, match=r"models: expected models by name, .*, got CapsNet"):
        cr.analysis.class_probabilities(model, torch.rand(1, 1, 8, 8), torch.tensor([0]))
