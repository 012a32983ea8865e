"""A run, opened: its recipe, its model with the best weights, its data, and the variants of the model. Everything is
loaded when first asked for, and every room that looks into a run takes it from here. Once training is over, test
data are looked at once, and the result is written down."""

import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from capsroute.analysis.convergence import wait_for
from capsroute.analysis.poses import viewpoint_sequences
from capsroute.bars import watched
from capsroute.data import ImageSet, dataset_info
from capsroute.data.batches import Epochs
from capsroute.data.sets import joined
from capsroute.inference import MasterCoefficients, accumulate, refusal, with_coefficients
from capsroute.models import ImageModel, load_model
from capsroute.training.data import Splits, load_splits, plain_batches
from capsroute.training.distributed import World
from capsroute.training.evaluation import VARIANTS, call_model, evaluate, replaceable_layers, uniform_variant
from capsroute.training.image_statistics import record_preprocessing
from capsroute.training.own_images import moved
from capsroute.training.precision import Precision
from capsroute.training.recipe import Recipe
from capsroute.training.run_folder import RunFolder

EXAMPLES = 5000  # training images that master coefficients for pictures are made from where a run left none


class Sample(NamedTuple):
    """Some images of a test set."""

    images: Tensor  # [n, c, h, w] in [0, 1]
    labels: Tensor  # [n], or [n, 2]
    parts: Tensor | None  # [n, 2, h, w] in [0, 1]: the two digits that an image is made of, where they are kept


class Run:
    """A run folder with all that is in it. What is at hand already (`recipe`, `model`, `splits`) can be given.

    Args:
        path: the folder.
        device: where the model and its batches live.
        limit: averages for pictures are over no more images than this.
        beside: folders of other runs, whose training is shown beside this one's.
        data: where the run's own images are, if they moved, or if they were given in Python.

    Example:
        >>> import tempfile, capsroute as cr
        >>> quick = cr.training.load_recipe("quickstart", ["training.max_steps=1", "evaluation.pictures=false"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = cr.training.fit(None, None, quick, folder, reporter=cr.training.SilentReporter())
        ...     run = cr.training.Run(folder)
        ...     run.model.name, run.classes[:3], list(run.variants())
        ('capsnet_small', ('0', '1', '2'), ['as_trained', 'fast', 'uniform'])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        device: torch.device | str = "cpu",
        *,
        recipe: Recipe | None = None,
        model: nn.Module | None = None,
        splits: Splits | None = None,
        limit: int | None = None,
        beside: Sequence[str | os.PathLike[str]] = (),
        data: str | os.PathLike[str] | None = None,
    ):
        self.folder, self.device = RunFolder(path), torch.device(device)
        self.limit, self.beside = limit, tuple(map(Path, beside))
        self.data = data
        given = {"recipe": recipe, "model": model, "splits": splits}
        self.__dict__.update({name: piece for name, piece in given.items() if piece is not None})

    @cached_property
    def recipe(self) -> Recipe:
        """As it was resolved when the run began."""
        recipe = self.folder.recipe()
        return recipe if self.data is None else moved(recipe, self.data)

    @cached_property
    def model(self) -> Any:
        """The model with the best weights, in evaluation mode."""
        recipe = self.recipe  # first: it says that a folder is no run
        model = load_model(self.folder.best)
        if recipe.data.normalise != "none" and model.preprocessing.mean is None:
            # A run of a version that kept the mean and deviation nowhere.
            record_preprocessing(model, self.splits, recipe)
        return model.to(self.device).eval()

    @cached_property
    def splits(self) -> Splits:
        """The data that the recipe names."""
        return load_splits(self.recipe, self.device)

    @property
    def test(self) -> ImageSet:
        """The first test set."""
        return next(iter(self.splits.test.values()))

    @property
    def takes_images(self) -> bool:
        """Whether the model is one of images; others read texts."""
        return isinstance(self.model, ImageModel)

    @cached_property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, where the run knows them."""
        if self.model.preprocessing.classes is not None:
            return self.model.preprocessing.classes
        if "splits" in self.__dict__:
            return tuple(self.splits.train.classes)
        return None if self.recipe.data.name is None else tuple(dataset_info(self.recipe.data.name).classes)

    def batches(self, images: Any, world: World | None = None) -> Epochs:
        """Batches to look at: in order, prepared as the model was trained, never augmented; of several processes, the
        share of this one."""
        share = {} if world is None else {"rank": world.rank, "world_size": world.size}
        return plain_batches(images, self.recipe, self.device, **share)

    def scores(self, inputs: Any) -> Tensor:
        """What the model says about a batch of images, or of texts with their mask [b,classes]."""
        return call_model(self.model, inputs).scores

    # Variants

    @cached_property
    def master(self) -> MasterCoefficients | None:
        """The master coefficients that the run left; None if it left none."""
        if self.folder.master.is_file():
            return MasterCoefficients.load(self.folder.master)
        _ = self.recipe  # it says that a folder is no run
        return None

    def accumulate(
        self, images: Any = None, world: World | None = None, shown: bool = False, **options: Any
    ) -> MasterCoefficients | None:
        """Master coefficients from training images (None: all); None where no layer takes any. They are kept here, and
        `options` go to `cr.inference.accumulate`. `shown`: with a progress bar."""
        layers = options.pop("layers", None) or replaceable_layers(self.model)
        if layers:
            images = self.splits.train if images is None else images
            batches = watched(self.batches(images, world), "accumulating", shown)
            self.master = accumulate(self.model, batches, layers=layers, **options)
        return self.master

    def variants(self) -> dict[str, Any]:
        """The model by variant: "as_trained", "fast" where there are master coefficients, "uniform" where it routes.

        `refusals` says why one is missing.
        """
        found = {"as_trained": self.model}
        if self.master is not None:
            found["fast"] = with_coefficients(self.model, self.master)
        return found if isinstance(self._uniform, str) else found | {"uniform": self._uniform}

    @property
    def refusals(self) -> dict[str, str]:
        """Why a variant is missing, by its name."""
        reasons = {} if self.master is not None else {"fast": self._no_master()}
        return reasons | {"uniform": self._uniform} if isinstance(self._uniform, str) else reasons

    def _no_master(self) -> str:
        if not hasattr(self.model, "routed_layers") or replaceable_layers(self.model):
            return "there are no master coefficients"
        reasons = filter(None, map(refusal, self.model.routed_layers().values()))
        return next(reasons, "the model has no layer that routes")

    @cached_property
    def _uniform(self) -> nn.Module | str:
        """The variant with equal coefficients, or why there is none."""
        try:
            return uniform_variant(self.model) or "the model has no layer that routes"
        except ValueError as error:
            return str(error)

    # Images to make pictures of

    @cached_property
    def has_poses(self) -> bool:
        """Whether the model of images has class capsules."""
        with torch.no_grad():
            return self.model(torch.zeros(1, *self.model.input_shape, device=self.device)).poses is not None

    def most(self, count: int, split: str = "test") -> int:
        """`count`, or as many images as there are and as the limit allows."""
        size = len(self.test if split == "test" else self.splits.train)
        return min(count, size, self.limit or count)

    def sample(self, count: int) -> Sample:
        """`count` test images, or `most`, evenly spread over the set: some sets are sorted by class."""
        some = self._some("test", count)
        images, labels = self._prepared(some)
        parts = some.metadata.get("parts")
        return Sample(images, labels, None if parts is None else parts.float() / 255)

    def training_batches(self, count: int) -> Epochs:
        """`count` training images, or `most`, evenly spread over the set, in batches."""
        return self.batches(self._some("training", count))

    def test_batches(self, count: int) -> Epochs:
        """`count` test images, or `most`, evenly spread over the set, in batches."""
        return self.batches(self._some("test", count))

    def quick_master(self) -> MasterCoefficients | None:
        """Master coefficients that the run left, or made now from some training images; None where there can be
        none."""
        # Containers are by class, of one label per image; digits that pictures are drawn from are not these pictures.
        if self.master is None and self.test.labels.dim() == 1 and not self.recipe.data.fresh:
            try:
                return self.accumulate(self._some("training", EXAMPLES))
            except ValueError:  # of so few images, some class has none
                return None
        return self.master

    def shown_variants(self) -> dict[str, Any]:
        """The variants as pictures name them, with master coefficients made if need be."""
        self.quick_master()
        return {VARIANTS[name]: model for name, model in self.variants().items()}

    @cached_property
    def views(self) -> ImageSet:
        """The test images of every test set, together: some sets are the same toys from other viewpoints."""
        return joined(list(self.splits.test.values()), self.test.classes, self.test.name, self.test.split)

    def seen(self, by: str) -> Tensor:
        """Amounts of `by` that training images have."""
        return self.splits.train.metadata[by].unique()

    def sequences(self, by: str, **fixed: int) -> tuple[Tensor, Tensor]:
        """Test images that differ only in `by` [sequence,step,c,h,w], and its amounts [step]."""
        rows, amounts = viewpoint_sequences(self.views, by, **fixed)
        images, _ = self._prepared(self.views.subset(rows.flatten()))
        return images.unflatten(0, rows.shape), amounts

    def _some(self, split: str, count: int) -> ImageSet:
        images = self.test if split == "test" else self.splits.train
        return images.subset(spread_rows(len(images), self.most(count, split)))

    def _prepared(self, some: ImageSet) -> tuple[Tensor, Tensor]:
        """Images and labels as the model gets them, in one batch."""
        images, labels = zip(*self.batches(some))
        return torch.cat(images), torch.cat(labels)


def spread_rows(size: int, count: int) -> Tensor:
    """`count` of `size` rows, evenly spread; all of them when there are fewer."""
    count = min(count, size)
    return torch.arange(count) * size // count


def measure_run(run: Run, world: World, training: dict[str, Any], shown: bool = False) -> dict[str, Any]:
    """Test the model of a run on every test set, in all its variants; `training` is added; `shown`: with bars.

    Master coefficients are made and kept where the recipe asks for them.
    """
    if run.recipe.evaluation.fast:
        master = run.accumulate(world=world, shown=shown)
        if master is not None and world.first:
            master.save(run.folder.master)
    precision = Precision(run.recipe.training.precision, world.device)
    tests = measure_variants(run, run.splits.test, run.variants(), world, precision, shown)
    return {
        "recipe": run.recipe.name,
        "seed": run.recipe.training.seed,
        "parameters": sum(parameter.numel() for parameter in run.model.parameters()),
        **training,
        "test": next(iter(tests.values()), {}),
        "tests": tests,
        "refusals": {name: why for name, why in run.refusals.items() if name != "fast" or run.recipe.evaluation.fast},
    }


def measure_variants(
    run: Run,
    tested: Mapping[str, Any],
    variants: Mapping[str, nn.Module],
    world: World,
    precision: Precision,
    shown: bool = False,
) -> dict[str, dict[str, dict[str, float]]]:
    """Accuracy and speed of each variant on each set of images; the processes share the images."""
    tests: dict[str, dict[str, dict[str, float]]] = {}
    settings = run.recipe.evaluation
    for name, images in tested.items():
        batches = run.batches(images, world)
        for variant, model in variants.items():
            seen = watched(batches, f"testing {name}, {VARIANTS[variant]}", shown)
            metrics = evaluate(model, seen, settings.two_labels, precision, world=world)
            del metrics["seconds"]
            speed = measure_speed(model, batches, precision, settings.speed_seconds) * world.size
            tests.setdefault(name, {})[variant] = {**metrics, "images_per_second": speed}
    return tests


@torch.no_grad()
def measure_speed(model: nn.Module, batches: Epochs, precision: Precision, seconds: float = 0.3) -> float:
    """Images a second of a model that has run before, on the first batch over and over again."""
    inputs, labels, *_ = next(iter(batches))
    done, elapsed = 0, 0.0
    wait_for(precision.device)
    start = time.perf_counter()
    while not done or elapsed < seconds:
        with precision.autocast():
            call_model(model, inputs)
        wait_for(precision.device)
        done, elapsed = done + len(labels), time.perf_counter() - start
    return done / elapsed
