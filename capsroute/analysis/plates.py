"""The pictures that can be made of a run: what each shows, what it needs, and how it is made."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import capsroute.analysis as analysis
from capsroute.analysis.named import Named
from capsroute.analysis.poses import FACTS
from capsroute.inference import class_layer, refusal
from capsroute.layers import Router, RoutingPool2d

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PLATES", "Plate"]

Run = Any  # a cr.training.Run, which stands above this room
Need = Callable[[Run], str | None]  # why a picture cannot be made; None when it can


COUNT = re.compile(r"\{(\d+) (test|training)\}")


class Plate(NamedTuple):
    """One picture: `make(subject)` gives its numbers and the figure drawn from them.

    In a caption, `{500 test}` stands for 500 test images, or as many as there are or were asked for.
    """

    name: str
    title: str
    caption: str
    needs: tuple[Need, ...]
    make: Callable[[Run], tuple[Named, Figure]]

    def refusal(self, subject: Run) -> str | None:
        """Why this picture cannot be made of this run."""
        return next((reason for reason in (need(subject) for need in self.needs) if reason), None)

    def says(self, subject: Run) -> str:
        """The caption under the picture of this run."""
        return COUNT.sub(lambda found: f"{subject.most(int(found[1]), found[2])} {found[2]}", self.caption)


PLATES: list[Plate] = []


def plate(title: str, caption: str, *needs: Need):
    """Puts a function that makes a picture into the book, under its own name."""

    def register(make):
        PLATES.append(Plate(make.__name__, title, caption, needs, make))
        return make

    return register


def images(subject: Run) -> str | None:
    return None if subject.takes_images else "the model reads no images"


def decoder(subject: Run) -> str | None:
    return None if getattr(subject.model, "decoder", None) else "the model has no decoder"


def routing(subject: Run) -> str | None:
    return None if subject.model.routed_layers() else "the model has no routed layer"


def iterations(subject: Run) -> str | None:
    routers = (module for module in subject.model.modules() if isinstance(module, Router))
    return (
        None if any(hasattr(router, "iterations") for router in routers) else "the model does not route in iterations"
    )


def coupling(subject: Run) -> str | None:
    if any(isinstance(module, RoutingPool2d) for module in subject.model.modules()):
        return None
    layers = list(subject.model.routed_layers())
    if not layers:
        return routing(subject)
    leads = layers[0] == class_layer(subject.model, len(subject.test.classes))
    return None if leads else "no one layer leads from places to classes; the parse tree shows the paths"


def one_label(subject: Run) -> str | None:
    return None if subject.test.labels.dim() == 1 else "images have two labels"


def two_labels(subject: Run) -> str | None:
    return None if subject.test.labels.dim() == 2 else "images have one label"


def columns(subject: Run) -> str | None:
    if subject.recipe.data.fresh:
        return "training images are drawn anew, none is kept"
    name = class_layer(subject.model, len(subject.test.classes)) if subject.model.routed_layers() else None
    if name is None:
        return "the model has no routed layer with the classes as parents"
    return refusal(subject.model.routed_layers()[name]) or one_label(subject)


def master(subject: Run) -> str | None:
    return None if subject.quick_master() is not None else "the run has no master coefficients, and none can be made"


def viewpoints(subject: Run) -> str | None:
    known = all(set(FACTS) <= set(test.metadata) for test in subject.splits.test.values())
    return None if known else "no viewpoints are known of the test images"


def class_capsules(subject: Run) -> str | None:
    return None if subject.has_poses else "the model has no class capsules"


@plate(
    "Training",
    "Loss and accuracy after each epoch; of several runs, on validation images where they have any. After Tsai et al. "
    "2020, figure 4.",
)
def training(subject: Run):
    numbers = analysis.training_curves({folder.name: folder for folder in (subject.folder.path, *subject.beside)})
    return numbers, analysis.draw_training_curves(numbers)


@plate(
    "Reconstructions",
    "Test images (label above) and what the decoder makes of the capsule of the predicted class (below; wrong "
    "predictions in orange). After Sabour et al. 2017, figure 3.",
    images,
    decoder,
    one_label,
)
def reconstructions(subject: Run):
    sample = subject.sample(10)
    numbers = analysis.reconstructions(subject.model, sample.images, sample.labels)
    return numbers, analysis.draw_reconstructions(numbers, subject.test.classes)


@plate(
    "Dimension perturbations",
    "Each row shows the reconstruction while one dimension of the predicted class capsule moves from -0.25 to 0.25. "
    "After Sabour et al. 2017, figure 4.",
    images,
    decoder,
)
def perturbations(subject: Run):
    numbers = analysis.perturbations(subject.model, subject.sample(1).images)
    return numbers, analysis.draw_perturbations(numbers, classes=subject.test.classes)


@plate(
    "Overlapping digits taken apart",
    "Images of two digits, the digits before they were laid over each other, and each of the two most likely digits "
    "reconstructed from its own capsule (one orange, one blue; wrong ones named in orange). After Sabour et al. 2017, "
    "figure 5.",
    images,
    decoder,
    two_labels,
)
def separation(subject: Run):
    sample = subject.sample(8)
    numbers = analysis.separation(subject.model, sample.images, sample.labels, sample.parts)
    return numbers, analysis.draw_separation(numbers, subject.test.classes)


@plate(
    "Coefficients of images",
    "Correlations between the ground-truth columns of the coefficients of {100 training} images, sorted by class. "
    "After Zhao et al. 2019, figure 2.",
    images,
    columns,
)
def gt_column_correlations(subject: Run):
    numbers = analysis.gt_column_correlations(subject.model, subject.training_batches(100))
    return numbers, analysis.draw_gt_column_correlations(numbers, subject.test.classes)


@plate(
    "Coefficients of classes",
    "The same, averaged over the pairs of different images of each two classes, of {5000 training} images. "
    "After Zhao et al. 2019, figure 3.",
    images,
    columns,
)
def class_correlations(subject: Run):
    numbers = analysis.class_correlations(subject.model, subject.training_batches(5000))
    return numbers, analysis.draw_class_correlations(numbers, subject.test.classes)


@plate(
    "Master coefficients",
    "Correlations between each column of the master coefficients and the ground-truth columns of "
    "{5000 training} images, averaged by class. After Zhao et al. 2019, figure 5.",
    images,
    columns,
    master,
)
def master_correlations(subject: Run):
    made = subject.quick_master()
    assert made is not None
    numbers = analysis.master_correlations(subject.model, made, subject.training_batches(5000))
    return numbers, analysis.draw_master_correlations(numbers, subject.test.classes)


@plate(
    "Class probabilities, dynamic and fast",
    "What the network says about five test images with its own routing and with master coefficients. After Zhao et "
    "al. 2019, figure 6.",
    images,
    one_label,
    master,
)
def class_probabilities(subject: Run):
    sample = subject.sample(5)
    numbers = analysis.class_probabilities(subject.shown_variants(), sample.images, sample.labels)
    return numbers, analysis.draw_class_probabilities(numbers, sample.images, subject.test.classes)


@plate(
    "Tuning curves, dynamic and fast",
    "Class probabilities averaged over the images of each class, of {10000 test} images. After Zhao et al. 2019, "
    "figure 7.",
    images,
    one_label,
    master,
)
def tuning_curves(subject: Run):
    numbers = analysis.tuning_curves(subject.shown_variants(), subject.test_batches(10000))
    return numbers, analysis.draw_tuning_curves(numbers, subject.test.classes)


@plate(
    "Coupling over the image",
    "Coupling coefficients between places of the image and the predicted class (mean over the types of capsule at a "
    "place), drawn where the capsules' receptive fields have their middle. After Zhao and Huang 2019, table 3.",
    images,
    coupling,
)
def coupling_maps(subject: Run):
    sample = subject.sample(8)
    numbers = analysis.coupling_maps(subject.model, sample.images)
    numbers = replace(numbers, images=sample.images)
    return numbers, analysis.draw_coupling_maps(numbers, subject.test.classes)


@plate(
    "Parse tree",
    "Where in the image the primary capsules lie that make up the three most likely class capsules: the thicker the "
    "line, the larger the part of the class capsule's sum of votes that comes from there.",
    images,
    routing,
)
def parse_tree(subject: Run):
    sample = subject.sample(1)
    numbers = analysis.parse_tree(subject.model, sample.images[0])
    numbers = replace(numbers, image=sample.images[0])
    return numbers, analysis.draw_parse_tree(numbers, subject.test.classes)


@plate(
    "Routing converges",
    "Agreement between votes and class capsules, entropy of the coefficients and movement of the class capsules over "
    "routing iterations: mean over {100 test} images, and where 80 % of them lie.",
    images,
    routing,
)
def routing_convergence(subject: Run):
    numbers = analysis.routing_convergence(subject.model, subject.sample(100).images, iterations=6)
    return numbers, analysis.draw_routing_convergence(numbers)


@plate(
    "What iterations cost and give",
    "Accuracy on {200 test} images, inference time and memory of activations by the number of routing iterations, with "
    "the weights of this run. After Tsai et al. 2020, figure 4.",
    images,
    iterations,
    one_label,
)
def by_iterations(subject: Run):
    sample = subject.sample(200)
    numbers = analysis.by_iterations(analysis.schedules(subject.model), sample.images, sample.labels)
    return numbers, analysis.draw_by_iterations(numbers)


@plate(
    "Robustness",
    "Accuracy on {500 test} images that are turned, shifted or scaled, with dynamic routing and with given "
    "coefficients.",
    images,
    one_label,
)
def robustness(subject: Run):
    sample = subject.sample(500)
    numbers = analysis.robustness(subject.shown_variants(), sample.images, sample.labels)
    return numbers, analysis.draw_robustness(numbers)


@plate(
    "A pose on its way",
    "Pose vectors of the activated class capsule while the elevation of one toy grows, by multidimensional scaling. "
    "After Heinsen 2019, figure 4.",
    images,
    class_capsules,
    viewpoints,
)
def pose_trajectory(subject: Run):
    pictures, amounts = subject.sequences("elevation", azimuth=0, lighting=0)
    numbers = analysis.pose_trajectory(subject.model, pictures[0], amounts)
    return numbers, analysis.draw_pose_trajectory(numbers, "elevation")


@plate(
    "Poses by azimuth",
    "Change of each pose vector of the activated class capsule as azimuth grows, one thin line a toy, the mean in dark "
    "blue. After Heinsen 2019, supplementary figure 6.",
    images,
    class_capsules,
    viewpoints,
)
def pose_by_azimuth(subject: Run):
    numbers = analysis.pose_change(subject.model, *subject.sequences("azimuth", elevation=0, lighting=0))
    return numbers, analysis.draw_pose_change(numbers, "azimuth", subject.seen("azimuth"))


@plate(
    "Poses by elevation",
    "Change of each pose vector of the activated class capsule as elevation grows, one thin line a toy, the mean in "
    "dark blue. After Heinsen 2019, supplementary figure 7.",
    images,
    class_capsules,
    viewpoints,
)
def pose_by_elevation(subject: Run):
    numbers = analysis.pose_change(subject.model, *subject.sequences("elevation", azimuth=0, lighting=0))
    return numbers, analysis.draw_pose_change(numbers, "elevation", subject.seen("elevation"))
