"""Coupling maps against the coefficients, one capsule at a time."""

import pytest
import torch
from torch import nn

import capsroute as cr
from capsroute.analysis import coupling_maps
from capsroute.models import ImageModel, ModelOutput
from tests.analysis.small import Stacked, images, small


def test_a_map_is_the_mean_over_types_of_capsule_at_each_place():
    model, x = small(kernel_size=2), images(2)  # 8 types on 3 x 3
    result = coupling_maps(model, x)
    output = model(x, return_coefficients=True)
    coefficients = output.coefficients["class_capsules"]
    for parent in range(4):
        for row in range(3):
            for column in range(3):
                children = [kind * 9 + row * 3 + column for kind in range(8)]
                expected = coefficients[:, children, parent].mean(1)
                torch.testing.assert_close(result.coarse[:, parent, row, column], expected)
    assert torch.equal(result.predictions, output.scores.argmax(1))


def test_pixels_at_the_places_have_the_value_of_the_map():
    model, x = small(kernel_size=2), images(2)  # fields of 4 pixels: places 1.5, 3.5, 5.5
    result = coupling_maps(model, x)
    between = (result.coarse[:, :, 0, 0] + result.coarse[:, :, 0, 1]) / 2  # at column 2.5, row 1.5
    pixels = result.maps[:, :, 1:3, 2:4]  # rows 1, 2 and columns 2, 3 around it
    torch.testing.assert_close(pixels[:, :, 0].mean(2), between)
    assert result.maps.shape == (2, 4, 8, 8)


class Pooled(ImageModel):
    """A CNN with routing pooling."""

    def __init__(self):
        super().__init__(1, 8, 3)
        torch.manual_seed(0)
        self.features = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.pool = cr.layers.RoutingPool2d(capsule_size=4, sharpness=3.0)
        self.classify = nn.Linear(8, 3)

    def forward(self, images, labels=None, return_coefficients=False):
        return ModelOutput(self.classify(self.pool(self.features(images)).flatten(1)))


def test_routing_pooling_has_a_map_for_each_group_of_channels():
    model, x = Pooled().double(), images(2)
    result = coupling_maps(model, x)
    with torch.no_grad():
        features = model.features(x)  # [2, 8, 4, 4]
    for group in range(2):
        capsules = features[:, 4 * group : 4 * group + 4].flatten(2).mT  # [2, 16, 4]
        pooled = cr.pooling_routing(cr.IdentityVotes(capsules), sharpness=3.0)
        torch.testing.assert_close(result.coarse[:, group].flatten(1), pooled.coefficients[:, :, 0])
    torch.testing.assert_close(result.coarse.sum((2, 3)), torch.ones(2, 2, dtype=torch.float64))
    torch.testing.assert_close(result.maps[:, :, 0, 0], result.coarse[:, :, 0, 0])


def test_capsules_that_are_patches_lie_in_the_middle_of_their_patch():
    model, x = Pooled().double(), images(2)
    model.features = nn.Conv2d(1, 8, 5).double()  # 4 x 4, without padding: places 2, 3, 4, 5
    model.pool = cr.layers.RoutingPool2d(capsule_size=2, grouping="spatial")
    result = coupling_maps(model, x)
    assert result.coarse.shape == (2, 8, 2, 2)  # at 2.5 and 4.5
    torch.testing.assert_close(
        result.maps[:, :, 2, 3], 0.75 * result.coarse[:, :, 0, 0] + 0.25 * result.coarse[:, :, 0, 1]
    )


def test_unknown_and_convolutional_layers_are_refused():
    with pytest.raises(ValueError, match="layer: expected one of class_capsules, got 'digits'"):
        coupling_maps(small(), images(1), "digits")
    with pytest.raises(ValueError, match="no one map over the image"):
        coupling_maps(Stacked(), images(1, 7), "stack.layers.0")


def test_a_stack_shows_its_first_layer_that_routes_a_whole_map():
    assert coupling_maps(Stacked(), images(1, 7)).coarse.shape == (1, 3, 2, 2)


def test_children_run_to_the_right_and_parents_down():
    C = torch.rand(5, 3, dtype=torch.float64)
    master = cr.inference.MasterCoefficients({"first": torch.rand(4, 2).double(), "last": C}, torch.ones(3).long())
    numbers = cr.analysis.master_matrix(master)
    assert numbers.layer == "last"
    assert torch.equal(cr.analysis.master_matrix(master, "first").coefficients, master["first"])
    (image,) = cr.analysis.draw_master_matrix(numbers).axes[0].get_images()
    assert torch.equal(torch.as_tensor(image.get_array().data), C.T)


def test_parents_that_are_no_classes_are_not_drawn_as_such():
    pooled = cr.create_model("zhao_huang_resnet20", **cr.models.small_options("zhao_huang_resnet20"))
    numbers = coupling_maps(pooled, torch.rand(2, *pooled.input_shape))
    assert not numbers.by_class
    figure = cr.analysis.draw_coupling_maps(numbers)
    assert "mean of parents" in figure.axes[2].get_ylabel()
    drawn = torch.from_numpy(figure.axes[2].images[-1].get_array().data)
    torch.testing.assert_close(drawn, numbers.maps[0].mean(0), equal_nan=True)
    assert coupling_maps(small(), images(2)).by_class


def test_a_matrix_that_is_not_there_is_named():
    master = cr.inference.MasterCoefficients({"one": torch.rand(3, 2)}, torch.ones(2).long())
    with pytest.raises(ValueError, match="layer: expected one of one, got 'two'"):
        cr.analysis.master_matrix(master, "two")
