"""The training loop: steps, epochs, validation, checkpoints, and going on exactly where a run was left."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from capsroute.data.batches import Epochs
from capsroute.models import CapsuleModel, ModelOutput, save_model
from capsroute.models.files import describe, save_weights
from capsroute.models.warming import warm_up
from capsroute.training.checkpoint import random_state, restore_random_state
from capsroute.training.data import Splits, made_ahead, plain_batches, training_batches
from capsroute.training.distributed import World, load_states, whole_model, whole_states
from capsroute.training.evaluation import call_model, correct_predictions, evaluate
from capsroute.training.graphs import GraphedPass, can_capture, capturable, graphs_refused, set_learning_rate
from capsroute.training.objective import Objective
from capsroute.training.optimisers import averaged, learning_rate_factor, make_optimiser
from capsroute.training.precision import Precision, channels_last, float32_products, sums_dtype
from capsroute.training.progress import Callbacks, SilentReporter
from capsroute.training.recipe import Recipe
from capsroute.training.run_folder import RunFolder
from capsroute.training.stopping import (
    LossGuard,
    StopSignals,
    check_weights,
    explain_memory,
    explain_nan,
    first_bad_module,
)
from capsroute.training.text import Padded

CLOCK_STEPS = 20  # several processes agree on the time only this often
STATE = {"step", "epoch", "seconds", "batches", "sums", "history", "best", "random", "scaler", "average", "model"}
STATE |= {"optimiser"}


class Loop:
    """One run: everything that changes while training, and how it changes.

    The learning rate, the order of the images and their augmentation follow from the step and the seed; all else that
    must survive is in `checkpoint`.
    """

    def __init__(
        self,
        model: nn.Module,
        splits: Splits,
        recipe: Recipe,
        folder: RunFolder,
        world: World,
        reporter: SilentReporter,
        callbacks: Callbacks,
        signals: StopSignals,
        loss: Callable[..., Tensor] | None = None,
    ):
        self.recipe, self.settings, self.signals = recipe, recipe.training, signals
        self.folder, self.world, self.reporter, self.callbacks = folder, world, reporter, callbacks
        share = {"rank": world.rank, "world_size": world.size}
        self.train = made_ahead(training_batches(splits, recipe, world.device, **share), world.device)
        self.validation: Epochs | None = None
        if splits.validation is not None:
            self.validation = plain_batches(splits.validation, recipe, world.device, **share)
        self.model = model.to(world.device)
        if self.settings.channels_last:
            channels_last(self.model)
        self.objective = Objective(recipe.loss, model, loss)
        self.sharded = self.settings.sharding == "fsdp" and world.size > 1
        # Copies are made before the model is wrapped: a wrapped one cannot be copied.
        self.template = copy.deepcopy(model).cpu() if self.sharded else None
        self.average = None if self.settings.ema is None else averaged(model, self.settings.ema)
        idle_decoder = getattr(model, "decoder", None) is not None and not recipe.loss.reconstruction
        self.shared = world.share(model, self.settings.sharding, find_unused=idle_decoder)
        self.called: Any = torch.compile(self.shared) if self.settings.compile else self.shared
        self.optimiser = make_optimiser(self.model, recipe.optimiser)
        self.precision = Precision(self.settings.precision, world.device)
        self.guard = LossGuard(world.device)
        self.recorded_update = False  # whether the optimiser's step is part of the recording
        self.graphed = self._make_graphed() if self.settings.cuda_graphs else None
        self.warm = world.size > 1  # whether kernels are compiled; what processes share is not gone through twice
        self.step, self.epoch, self.seconds = 0, 0, 0.0
        self.sums = torch.zeros(3, dtype=sums_dtype(world.device), device=world.device)  # loss, correct, images
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] | None = None

    def _make_graphed(self) -> GraphedPass:
        refused = graphs_refused(self.recipe, self.world)
        if refused is not None:
            raise ValueError(f"training.cuda_graphs: {refused}")
        # Loss scaling decides on the host whether to step, and not every optimiser can be recorded.
        self.recorded_update = not self.precision.scaler.is_enabled() and can_capture(self.optimiser)
        if not self.recorded_update:
            return GraphedPass(self._gradients, self.optimiser.zero_grad)
        capturable(self.optimiser, True)
        return GraphedPass(self._whole_step, self.optimiser.zero_grad)

    @property
    def total_steps(self) -> int:
        """How many steps the schedule is made for."""
        return self.settings.epochs * len(self.train)

    @property
    def judged(self) -> nn.Module:
        """The model that is evaluated and kept: the averaged one where there is one."""
        return self.model if self.average is None else self.average.module

    @property
    def stopped_early(self) -> bool:
        """Whether `training.max_steps` ended the run."""
        return self.settings.max_steps is not None and self.step >= self.settings.max_steps

    @property
    def cut_short(self) -> bool:
        """Whether it ended it in the middle of an epoch."""
        return self.stopped_early and self.step % len(self.train) > 0

    def run(self) -> None:
        """Train until the last epoch has ended."""
        self.resumed = self.written = time.monotonic()
        self.reporter.start(self.settings.epochs, self.total_steps, self.step)
        with ExitStack() as stack:
            stack.callback(self.reporter.stop)
            stack.enter_context(self._signals_wait())
            stack.enter_context(float32_products(self.settings.precision))
            if self.step == 0:
                self.checkpoint()
            while self.epoch < self.settings.epochs and not self.stopped_early:
                self._run_epoch()
            if self.best is None:
                self._keep(self.folder.best)
            self._keep(self.folder.last)
            if not self.cut_short:
                self.checkpoint()

    def _run_epoch(self) -> None:
        self.train.set_epoch(self.epoch)
        self.shared.train()
        began, seen = time.monotonic(), float(self.sums[2])
        for batch in self.train:
            with explain_memory(self.settings.batch_size, self.settings.accumulate, self.world.device):
                self._step(*batch)
            self.step += 1
            if self.reporter.due():
                self._show(began, seen)
            if self.stopped_early:
                if self.cut_short:
                    self.checkpoint()  # of the middle of an epoch, which is where going on begins
                break
            self._checkpoint_or_end()
        self._end_epoch(began, seen)

    def _step(self, images: Tensor, labels: Tensor, parts: Tensor | None = None) -> None:
        set_learning_rate(self.optimiser, self._learning_rate())
        self.objective.advance(self.step / self.total_steps)
        if self.settings.channels_last and isinstance(images, Tensor):
            images = images.to(memory_format=torch.channels_last)
        if not self.warm:
            self._warm_up(images, labels, parts)
        if self.graphed is None:
            self._eager_step(images, labels, parts)
        else:
            self._graphed_step(images, labels, parts)
        if not self.recorded_update:
            self._update()
        if self.average is not None:
            self.average.update_parameters(self.model)

    def _warm_up(self, images: Tensor, labels: Tensor, parts: Tensor | None) -> None:
        count = min(self.settings.accumulate, len(labels))
        piece = [_cut(values, count)[0] for values in (images, labels, parts)]
        warm_up(self.called, lambda model, *batch: self._forward(model, *batch)[1], piece)
        self.warm = True

    def _eager_step(self, images: Tensor, labels: Tensor, parts: Tensor | None) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        count = min(self.settings.accumulate, len(labels))
        pieces = zip(*(_cut(values, count) for values in (images, labels, parts)))
        for index, (inputs, given, drawn) in enumerate(pieces):
            blame = self._blame(inputs, given, drawn)
            with self.world.no_sync(self.shared, last=index == count - 1), explain_nan(self.step, blame):
                self._gradients(inputs, given, drawn, share=len(given) / len(labels), watch=self.guard.watch)
            self.guard.check(self.step, blame)

    def _graphed_step(self, images: Tensor, labels: Tensor, parts: Tensor | None) -> None:
        """A replay cannot stop half-way for a look at its loss: that of the step before is looked at meanwhile."""
        assert self.graphed is not None
        loss = self.graphed(images, labels, parts)
        self.guard.check(self.step - 1, self._blame(images, labels, parts))
        self.guard.watch(loss)

    def _blame(self, images: Tensor, labels: Tensor, parts: Tensor | None) -> Callable[[], str]:
        return lambda: first_bad_module(self.model, lambda: self._forward(self.model, images, labels, parts))

    def _whole_step(self, images: Tensor, labels: Tensor, parts: Tensor | None) -> Tensor:
        """Gradients and update together, to be recorded."""
        loss = self._gradients(images, labels, parts)
        self._update()
        return loss

    def _learning_rate(self) -> float:
        factor = learning_rate_factor(self.recipe.schedule, self.step, self.total_steps, len(self.train))
        return self.recipe.optimiser.learning_rate * factor

    def _gradients(
        self,
        images: Tensor,
        labels: Tensor,
        parts: Tensor | None,
        share: float = 1.0,
        watch: Callable[[Tensor], None] = lambda loss: None,
    ) -> Tensor:
        """Add the gradient of one piece of a batch, weighted by the share of the batch that it is; returns its loss."""
        output, loss = self._forward(self.called, images, labels, parts)
        watch(loss)
        self.precision.scaler.scale(loss if share == 1 else loss * share).backward()
        with torch.no_grad():
            kind = str(getattr(self.model, "score_kind", "logit"))
            correct = correct_predictions(output.scores, labels, kind, self.recipe.evaluation.two_labels).all(1).sum()
            # In place, and the number as a number: a GPU that it is copied to would make us wait.
            self.sums[0].add_(loss, alpha=len(labels))
            self.sums[1].add_(correct)
            self.sums[2].add_(len(labels))
        return loss

    def _forward(
        self, model: nn.Module, images: Tensor, labels: Tensor, parts: Tensor | None
    ) -> tuple[ModelOutput, Tensor]:
        with self.precision.autocast():
            output = call_model(model, images, self.objective.decoder_labels(labels))
        return output, self.objective(output, images, labels, parts)

    def _update(self) -> None:
        scaler = self.precision.scaler
        if self.settings.clip is not None:
            scaler.unscale_(self.optimiser)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        scaler.step(self.optimiser)
        scaler.update()

    def _end_epoch(self, began: float, seen: float) -> None:
        """Validate, write a line, keep the weights if they are the best so far."""
        check_weights(self.model, self.step - 1, self.world.sum)
        loss, correct, images = self.world.sum(self.sums.clone()).tolist()
        row = {
            "epoch": self.epoch + 1,
            "step": self.step,
            "learning_rate": self._learning_rate(),
            "train_loss": loss / images,
            "train_accuracy": correct / images,
            **self._validate(),
            "images_per_second": self._speed(began, seen),
            "seconds": self._elapsed(),
        }
        self.history.append(row)
        self.epoch += 1
        self.sums.zero_()
        if self.validation is not None and (self.best is None or _rank(row) > _rank(self.best)):
            self.best = row
            self._keep(self.folder.best)
        if self.world.first:
            self.folder.write_metrics(self.history)
        self.reporter.epoch(row)
        self.callbacks.tell("epoch", dict(row))
        if not self.cut_short:
            self._checkpoint_or_end()

    def _validate(self) -> dict[str, float]:
        if self.validation is None:
            return {}
        self.objective.advance(self.step / self.total_steps)
        metrics = evaluate(
            self.judged,
            self.validation,
            self.recipe.evaluation.two_labels,
            self.precision,
            lambda output, images, labels: self.objective.judge(output, labels),
            self.world,
        )
        return {"validation_loss": metrics["loss"], "validation_accuracy": metrics["accuracy"]}

    def _keep(self, folder: Path) -> None:
        model = whole_model(self.judged, self.template)
        if not self.world.first:
            return
        if isinstance(model, CapsuleModel) and not describe(model)[1]:
            save_model(model, folder)
        else:  # of one's own, or with layers that no name makes again
            save_weights(model, folder)

    def _show(self, began: float, seen: float) -> None:
        loss, correct, images = self.sums.tolist()
        speed = self._speed(began, seen)
        self.reporter.step(self.epoch, self.step, loss / images, correct / images, speed)

    def _speed(self, began: float, seen: float) -> float:
        images = (float(self.sums[2]) - seen) * self.world.size
        return images / max(1e-9, time.monotonic() - began)

    def _elapsed(self) -> float:
        """Seconds of training, those before an interruption included."""
        return self.seconds + time.monotonic() - self.resumed

    @contextmanager
    def _signals_wait(self) -> Iterator[None]:
        """A signal is heard after the step that it falls into, when there is a checkpoint to leave."""
        self.signals.at_once = False
        try:
            yield
        finally:
            self.signals.at_once = True
        if self.signals.received is not None:
            self.signals.end()

    def _checkpoint_or_end(self) -> None:
        """Write a checkpoint if it is time for one, or if a signal asks to end, which we then do."""
        asked = self._asked_to_end()
        if asked or self._checkpoint_due():
            self.checkpoint()
        if asked:
            self.signals.received = asked
            self.signals.end()

    def _asked_to_end(self) -> int:
        """The signal that this process or another has got, 0 for none; several ask each other only now and then."""
        received = self.signals.received or 0
        if self.world.size == 1:
            return received
        return max(self.world.gather(received)) if self.step % CLOCK_STEPS == 0 else 0

    def _checkpoint_due(self) -> bool:
        settings = self.recipe.checkpoint
        if settings.every_steps and self.step % settings.every_steps == 0:
            return True
        if settings.every_minutes is None or (self.world.size > 1 and self.step % CLOCK_STEPS):
            return False
        return self.world.from_first(time.monotonic() - self.written > 60 * settings.every_minutes)

    def checkpoint(self) -> None:
        """Write down everything that going on needs."""
        self.guard.check(self.step - 1, lambda: "found before a checkpoint was written")
        check_weights(self.model, self.step - 1, self.world.sum)
        model, optimiser = whole_states(self.model, self.optimiser, self.sharded)
        state = {
            "step": self.step,
            "epoch": self.epoch,
            "seconds": self._elapsed(),
            "batches": self.train.state_dict(),
            "sums": self.world.sum(self.sums.clone()),
            "history": self.history,
            "best": self.best,
            "random": self.world.gather(random_state(self.world.device)),
            "scaler": self.precision.scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "model": model,
            "optimiser": optimiser,
        }
        if self.world.first:
            self.folder.checkpoints.save(self.step, state)
        self.written = time.monotonic()

    def resume(self) -> bool:
        """Go back to the newest whole checkpoint; False, said aloud, where there is none."""
        state = self.world.first_does(self._load_state)
        if state is None:
            self.reporter.say(f"no whole checkpoint in {self.folder.checkpoints.folder}: starting anew")
            return False
        load_states(self.model, self.optimiser, state, self.sharded)
        capturable(self.optimiser, self.recorded_update)  # as this run needs it, whatever the last one did
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.precision.scaler.load_state_dict(state["scaler"])
        self.train.load_state_dict(state["batches"])
        self.step, self.epoch, self.seconds = state["step"], state["epoch"], state["seconds"]
        # The sums of all processes go on in the first.
        self.sums.copy_(state["sums"]) if self.world.first else self.sums.zero_()
        self.history, self.best = state["history"], state["best"]
        if self.world.rank < len(state["random"]):
            restore_random_state(state["random"][self.world.rank], self.world.device)
        return True

    def _load_state(self) -> dict[str, Any] | None:
        unfit: list[str] = []

        def check(state: dict[str, Any]) -> None:
            try:
                self._check_state(state)
            except Exception as error:
                unfit.append(str(error))
                raise

        state = self.folder.checkpoints.load(self.reporter.say, check)
        if state is None and unfit:
            folder = self.folder.checkpoints.folder
            raise ValueError(f"run: no checkpoint in '{folder}' is of this model and these data: {unfit[0]}")
        return state

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raise an error unless a state is of this run, before anything is changed by it."""
        missing = STATE - set(state)
        if missing:
            raise ValueError(f"expected {', '.join(sorted(missing))} in it, found none")
        own = {name: tuple(values.shape) for name, values in self.model.state_dict().items()}
        found = {name: tuple(values.shape) for name, values in state["model"].items()}
        if own != found:
            name = next(name for name in {**own, **found} if own.get(name) != found.get(name))
            raise ValueError(f"expected weights {name} {own.get(name)}, found {found.get(name)}")
        if not all(values.isfinite().all() for values in state["model"].values()):
            raise ValueError("its weights are not finite")
        if not 0 <= state["step"] <= self.total_steps or not 0 <= state["epoch"] <= self.settings.epochs:
            raise ValueError(f"expected at most {self.total_steps} steps, found {state['step']}")
        if (self.average is None) != (state["average"] is None):
            raise ValueError("expected averaged weights in both or neither")
        if not self.sharded:
            _check_optimiser(self.optimiser, state["optimiser"])
        if not all({"torch", "device", "numpy", "python"} <= set(each) for each in state["random"]):
            raise ValueError("expected the states of torch, numpy and Python in it")
        self.train.load_state_dict(state["batches"])


def _check_optimiser(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Raise ValueError unless what is remembered of each parameter has its shape: torch does not look."""
    groups, found = (
        [len(group["params"]) for group in each["param_groups"]] for each in (optimiser.state_dict(), state)
    )
    if groups != found:
        raise ValueError(f"expected groups of {groups} parameters, found {found}")
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for number, remembered in state["state"].items():
        for name, values in remembered.items():
            shape = parameters[int(number)].shape
            if isinstance(values, Tensor) and values.dim() and values.shape != shape:
                raise ValueError(f"expected {name} {tuple(shape)} of a parameter, found {tuple(values.shape)}")


def _cut(values: Tensor | Padded | None, count: int) -> list:
    if isinstance(values, Padded):
        return [Padded(*piece) for piece in zip(*(_cut(part, count) for part in values))]
    return [values] * count if values is None or count == 1 else list(values.tensor_split(count))


def _rank(row: dict[str, float]) -> tuple[float, float]:
    """Better validation accuracy, then lower loss."""
    return row["validation_accuracy"], -row["validation_loss"]
