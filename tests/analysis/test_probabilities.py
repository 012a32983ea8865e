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
