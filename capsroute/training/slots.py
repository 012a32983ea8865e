"""Training a slot autoencoder without labels, and judging it by the foreground ARI of its masks.

What keeps it from breaking: the learning rate warms up, gradients are clipped, and the schedule ends near zero. On a
GPU the whole step (forward, backward, clipping, Adam) is recorded once and replayed.
"""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from capsroute import data
from capsroute.analysis.slots import ari
from capsroute.models.files import save_weights
from capsroute.models.slots import SlotAutoencoder
from capsroute.training.checkpoint import seeded
from capsroute.training.graphs import graphed_step, set_learning_rate
from capsroute.training.precision import AUTOCAST, float32_products
from capsroute.training.recipe import recipe_folder, tomllib
from capsroute.training.run_folder import RunFolder
from capsroute.training.sections import Count, Factor, NotNegative, Positive, Section

CHUNK = 64  # images evaluated at once


class SlotRecipe(Section):
    """Everything that decides a training run of slots.

    >>> from capsroute.training.slots import SlotRecipe
    >>> SlotRecipe(data="multi_shapes").steps
    20000
    """

    name: str = "slots"
    description: str = ""
    data: Literal["tetrominoes_like", "multi_shapes"] = "tetrominoes_like"
    data_options: dict[str, int] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)  # arguments of SlotAutoencoder
    steps: Count = 20_000
    minutes: Positive | None = None  # the schedule ends by then, however many steps it has come to
    batch_size: Count = 64
    learning_rate: Positive = 4e-4
    warmup: Count = 1000
    last: Factor = 0.02  # the learning rate at the end, as a share
    clip: Positive = 1.0
    precision: Literal["fp32", "tf32", "bf16"] = "fp32"
    compile: bool = False
    cuda_graphs: bool = False
    every: NotNegative = 20.0  # seconds between evaluations
    seed: int = 0
    device: str = "auto"

    def rate(self, step: int, progress: float) -> float:
        """The learning rate: linear warm-up, then half a cosine over the part of training that is done."""
        warm = min(1.0, (step + 1) / self.warmup)
        return self.learning_rate * warm * (self.last + (1 - self.last) * (1 + math.cos(math.pi * progress)) / 2)


def load_slot_recipe(recipe: str | Path, **changes: Any) -> SlotRecipe:
    """A recipe from a TOML file, or by the name of one of ours (tetrominoes, shapes, tetrominoes-cpu), with changes.

    >>> from capsroute.training.slots import load_slot_recipe
    >>> load_slot_recipe("tetrominoes-cpu", steps=10).steps
    10
    """
    path = Path(recipe)
    if not path.is_file():
        known = {found.stem: found for found in sorted((recipe_folder() / "slots").glob("*.toml"))}
        if str(recipe) not in known:
            raise ValueError(f"recipe: expected a TOML file or one of {', '.join(known)}, got {str(recipe)!r}")
        path = known[str(recipe)]
    return SlotRecipe.model_validate({"name": path.stem, **tomllib.loads(path.read_text()), **changes})


class SlotRun:
    """One run: the model, its data on the device, and the numbers it has come to."""

    def __init__(self, recipe: SlotRecipe):
        self.recipe = recipe
        self.device = _device(recipe)
        self.half = AUTOCAST.get(recipe.precision)
        torch.manual_seed(recipe.seed)
        options: dict[str, Any] = {**recipe.data_options, "seed": recipe.seed}
        self.sets = {
            split: data.load(recipe.data, split, device=self.device, **options)
            for split in ("train", "validation", "test")
        }
        self.images = self.sets["train"].images
        self.model = SlotAutoencoder(self.images.shape[1], tuple(self.images.shape[2:]), **recipe.model)
        self.model.to(self.device)
        called: Any = torch.compile(self.model) if recipe.compile else self.model
        fused = self.device.type == "cuda"
        self.optimiser = torch.optim.Adam(self.model.parameters(), recipe.learning_rate, fused=fused)
        example = torch.zeros(recipe.batch_size, *self.images.shape[1:], device=self.device)
        how: dict[str, Any] = {"autocast": self.half, "clip": recipe.clip, "record": recipe.cuda_graphs}
        self.step = graphed_step(called, _error, self.optimiser, [example], **how)
        self.history: list[dict[str, float]] = []

    def run(self, folder: str | Path, say: Callable[[str], None] = print) -> dict[str, float]:
        """Train, write metrics.csv as it goes, and in the end the weights and result.json; the result."""
        recipe, kept = self.recipe, RunFolder(folder)
        if (kept.path / "recipe.json").exists():
            raise ValueError(f"folder: '{folder}' holds a run already; name another")
        kept.write("recipe.json", recipe.model_dump())
        start = judged = time.monotonic()
        step, progress = 0, 0.0
        with float32_products(recipe.precision):
            while progress < 1:
                set_learning_rate(self.optimiser, recipe.rate(step, progress))
                loss = self.step_once()
                step += 1
                seconds = time.monotonic() - start
                timed = 0.0 if recipe.minutes is None else seconds / (60 * recipe.minutes)
                progress = min(1.0, max(step / recipe.steps, timed))
                if time.monotonic() - judged >= recipe.every or progress == 1 or step == 1:
                    row = {"step": step, "seconds": seconds, "learning_rate": recipe.rate(step, progress)}
                    row |= {"loss": float(loss), "gradient_norm": float(self.step.norm), **self.judge("validation")}
                    self.history.append(row)
                    kept.write_metrics(self.history)
                    say(" ".join(f"{name} {value:.6g}" for name, value in row.items()))
                    judged = time.monotonic()
            self.model.eval()
            result = {"steps": step, "seconds": time.monotonic() - start, **self.judge("test")}
        kept.write("result.json", result)
        kept.write("config.json", self.model.config)
        save_weights(self.model, folder)
        return result

    def step_once(self) -> Tensor:
        """One step on images drawn at random; its loss []."""
        chosen = torch.randint(len(self.images), (self.recipe.batch_size,), device=self.device)
        return self.step(self.images[chosen].float() / 255)

    def judge(self, split: str) -> dict[str, float]:
        """The mean squared error and the foreground ARI on a split, from slots drawn at random: the same each time, and
        training draws as if nobody had judged."""
        scenes, errors, scores = self.sets[split], [], []
        with torch.no_grad(), seeded(self.recipe.seed, self.device):
            for images, masks in zip(scenes.images.split(CHUNK), scenes.metadata["masks"].split(CHUNK)):
                shown = images.float() / 255
                with torch.autocast(self.device.type, self.half, enabled=self.half is not None):
                    output = self.model(shown)
                errors.append((output.reconstruction.float() - shown).square().flatten(1).mean(1))
                scores.append(ari(masks, output.segments(), ignore=0))
        return {"error": torch.cat(errors).mean().item(), "foreground_ari": torch.cat(scores).mean().item()}


def _device(recipe: SlotRecipe) -> torch.device:
    found = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(found if recipe.device == "auto" else recipe.device)


def _error(model: nn.Module, shown: Tensor) -> Tensor:
    return (model(shown).reconstruction.float() - shown).square().mean()


def fit_slots(
    recipe: SlotRecipe, folder: str | Path, say: Callable[[str], None] = print
) -> tuple[SlotAutoencoder, dict[str, float]]:
    """Train slots as a recipe says; the model and its result on test scenes.

    >>> import tempfile
    >>> from capsroute.training.slots import SlotRecipe, fit_slots
    >>> tiny = {"features": 8, "channels": 4, "hidden": 8, "kernel_size": 3}
    >>> options = {"cell": 1, "count": 16}
    >>> recipe = SlotRecipe(steps=2, batch_size=4, model=tiny, data_options=options, device="cpu")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model, result = fit_slots(recipe, folder, say=lambda line: None)
    >>> sorted(result)
    ['error', 'foreground_ari', 'seconds', 'steps']
    """
    with seeded(recipe.seed, _device(recipe)):
        run = SlotRun(recipe)
        return run.model, run.run(folder, say)
