"""`fit`: a model, data and a recipe become a run folder with trained weights, measured once on test data. `fit_seeds`
does so with several seeds: mean and spread instead of one lucky number."""

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from capsroute.data.seeding import generator_at
from capsroute.models import CapsuleModel, create_model, load_model
from capsroute.models.files import load_weights
from capsroute.training.checkpoint import seeded
from capsroute.training.data import Splits, as_splits, load_splits, model_arguments
from capsroute.training.distributed import join_world
from capsroute.training.environment import describe_environment
from capsroute.training.image_statistics import record_preprocessing
from capsroute.training.loaders import Loaded
from capsroute.training.loop import Loop
from capsroute.training.own_images import recorded
from capsroute.training.precision import cpu_threads
from capsroute.training.progress import Callbacks, SilentReporter, make_reporter
from capsroute.training.recipe import Recipe, load_recipe
from capsroute.training.report import mean_and_spread, write_report
from capsroute.training.run import Run, measure_run
from capsroute.training.run_folder import RunFolder, choose_folder, record_look
from capsroute.training.stopping import StopSignals


@dataclass(frozen=True)
class RunResult:
    """What a run left behind: the folder, the model with its best weights, a row per epoch, and result.json."""

    folder: Path
    model: nn.Module
    history: list[dict[str, float]]
    result: dict[str, Any]

    @property
    def accuracy(self) -> float:
        """Share of the first test set that is classified correctly."""
        if not self.result["test"]:
            raise ValueError("accuracy: the run had no test set; its history has the accuracy on validation images")
        return self.result["test"]["as_trained"]["accuracy"]


def fit(
    model: nn.Module | None,
    data: Splits | Any | None,
    recipe: Recipe | dict[str, Any] | str | os.PathLike[str],
    run_folder: str | os.PathLike[str] | None = None,
    *,
    resume: bool = False,
    reporter: SilentReporter | None = None,
    loss: str | Callable[..., torch.Tensor] | None = None,
    callbacks: Sequence[Any] = (),
) -> RunResult:
    """Train `model` on `data` as `recipe` says, and test the best weights once. `capsroute train` calls this.

    Args:
        model: a model of `cr.create_model`, or any module that gives scores [b,classes], as a tensor or in an output
            with `.scores`; None for the one that the recipe names.
        data: `Splits`, or training data alone: an image set, images and labels as a pair (see `cr.data.from_arrays`),
            or a Dataset or DataLoader of torch that gives `(inputs, labels)`; None for the data set that the recipe
            names.
        recipe: a `Recipe`, plain data for one, a TOML file, or the name of one of `cr.training.list_recipes()`.
        run_folder: None for `runs/NAME` of the recipe, or the next free number of it. One that holds a run already is
            refused, unless it is to `resume`; one that another process is training in is refused.
        resume: go on from the last checkpoint in `run_folder`. A recipe that would change the meaning of what was done
            is refused; a finished run is returned as it is.
        reporter: who tells how it goes; None for a live bar on a terminal and a line per epoch elsewhere.
        loss: the name of a loss that recipes have; or a function `loss(output, labels)` -> a scalar, of what the model
            gave. None for the recipe's; where that is "auto", `model.loss(output, labels)` if the model has one.
        callbacks: functions that are called with the row of each epoch, or objects with any of `begin(folder, recipe)`,
            `epoch(row)`, `end(result)`; in the first process only. `docs/training.md` has TensorBoard, W&B and MLflow.

    Example:
        >>> import tempfile, capsroute as cr
        >>> splits = cr.training.Splits(cr.data.load("digits"), test={"digits": cr.data.load("digits", "test")})
        >>> model = cr.create_model("capsnet_small", image_size=8)
        >>> recipe = {"training": {"epochs": 1, "max_steps": 2}, "evaluation": {"pictures": False}}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = cr.training.fit(model, data=splits, recipe=recipe, run_folder=folder, reporter=None)
        ...     sorted(path.name for path in run.folder.iterdir())[:6]  # doctest: +ELLIPSIS
        epoch 1/1 ...
        ['best', 'checkpoints', 'environment.json', 'last', 'looks.csv', 'metrics.csv']
    """
    if not isinstance(recipe, Recipe):
        recipe = Recipe.of(recipe) if isinstance(recipe, dict) else load_recipe(recipe)
    if isinstance(loss, str):
        recipe = recipe.replace(**{"loss.name": loss})
    settings = recipe.training
    with ExitStack() as stack:
        world = stack.enter_context(join_world(settings.device))
        stack.enter_context(seeded(settings.seed, world.device))
        stack.enter_context(cpu_threads(settings.threads))
        folder = RunFolder(world.first_does(partial(_claim, run_folder, recipe, resume, stack)))
        signals = stack.enter_context(StopSignals(lambda: _how_to_go_on(folder)))
        if resume and world.first_does(partial(_nothing_to_do, folder, recipe)):
            reporter = reporter or make_reporter(world.first, None)
            reporter.say(f"'{folder.path}' is finished: nothing to do")
            return world.first_does(lambda: _finished_run(folder, model))
        splits = load_splits(recipe, world.device) if data is None else as_splits(data)
        recipe = recorded(recipe, splits)
        model = model or _create(recipe, splits)
        record_preprocessing(model, splits, recipe)
        _check_labels(model, splits)
        if world.rank:  # weights begin alike everywhere, but each process drops out other things
            own = generator_at(settings.seed, "process", world.rank)
            stack.enter_context(seeded(own.initial_seed(), world.device))
        events = folder.path / "tensorboard" if recipe.logging.tensorboard else None
        reporter, told = reporter or make_reporter(world.first, events), Callbacks(callbacks if world.first else ())
        own_loss = None if isinstance(loss, str) else loss
        loop = Loop(model, splits, recipe, folder, world, reporter, told, signals, own_loss)
        if resume and loop.resume():
            reporter.say(f"going on from step {loop.step} of {loop.total_steps} in {folder.path}")
        # Only now, when nothing speaks against it any more, is something written.
        if world.first:
            folder.start(recipe, describe_environment(world.device, world.size), resume)
            told.tell("begin", folder.path, recipe)
        loop.run()
        model = _with_best_weights(loop)
        model = model.to(world.device).eval()
        run = Run(folder.path, world.device, recipe=recipe, model=model, splits=splits)
        result = measure_run(run, world, _training_facts(loop), shown=reporter.live)
        if recipe.smoke:
            result = {"smoke": True, **result}
        if world.first:
            if recipe.evaluation.on == "test" and not recipe.smoke:
                record_look(folder.path, recipe, result["tests"])
            folder.write("result.json", result)
            drawn = isinstance(model, CapsuleModel) and not isinstance(splits.train, Loaded)
            write_report(folder, model if drawn else None, splits if drawn else None)
            told.tell("end", result)
        world.wait()
        return RunResult(folder.path, model, loop.history, result)


def _claim(run_folder: str | os.PathLike[str] | None, recipe: Recipe, resume: bool, stack: ExitStack) -> Path:
    """The folder of the run, held until `stack` is left; refused where it is another's, or holds another run."""
    chosen = run_folder is None
    root = "runs/smoke" if recipe.smoke else "runs"
    folder = RunFolder(choose_folder(recipe.name, root, resume) if run_folder is None else run_folder)
    stack.enter_context(folder.held(fresh=chosen))
    if folder.exists and not resume:
        raise ValueError(f"run_folder: '{folder.path}' holds a run already; go on with it (resume), or name another")
    if folder.exists:
        folder.check_resumable(recipe)
    return folder.path


def _nothing_to_do(folder: RunFolder, recipe: Recipe) -> bool:
    """Whether a run came to its end, or as far as `training.max_steps` lets it."""
    if not (folder.exists and folder.finished):
        return False
    stop = recipe.training.max_steps
    return folder.complete or (stop is not None and folder.read("result.json")["steps"] >= stop)


def _finished_run(folder: RunFolder, model: nn.Module | None) -> RunResult:
    if model is None:
        model = load_model(folder.best)
    else:
        load_weights(model, folder.best)
    return RunResult(folder.path, model, folder.read_metrics(), folder.read("result.json"))


def _how_to_go_on(folder: RunFolder) -> str:
    if not folder.exists:
        return "nothing was trained yet"
    return f"`capsroute train {shlex.quote(str(folder.path))} --resume` goes on from the last checkpoint"


def load_run(folder: str | os.PathLike[str]) -> tuple[Recipe, nn.Module]:
    """The recipe of a run and its model with the best weights, in evaluation mode.

    >>> import tempfile, capsroute as cr
    >>> quick = cr.training.load_recipe("quickstart", ["training.max_steps=1", "evaluation.pictures=false"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = cr.training.fit(None, None, quick, folder, reporter=cr.training.SilentReporter())
    ...     recipe, model = cr.training.load_run(folder)
    >>> recipe.data.name
    'digits'
    """
    run = Run(folder)
    return run.recipe, run.model


def fit_seeds(recipe: Recipe, seeds: int, folder: str | os.PathLike[str], resume: bool = False) -> dict[str, Any]:
    """Run a recipe with `seeds` seeds, counted from its own, into `folder/seed-N`; what `summarise` makes of them.

    With `resume` runs that are finished are left alone, and the one that was interrupted goes on.
    """
    first, results = recipe.training.seed, []
    with join_world(recipe.training.device) as world:
        for seed in range(first, first + seeds):
            run, own = RunFolder(Path(folder) / f"seed-{seed}"), recipe.replace(**{"training.seed": seed})
            done = world.first_does(partial(_done_before, run, own)) if resume else None
            if done is None:
                done = fit(None, None, own, run.path, resume=resume).result
            results.append(done)
        summary = summarise(results)
        if world.first:
            RunFolder(folder).write("summary.json", summary)
    return summary


def _done_before(run: RunFolder, recipe: Recipe) -> dict[str, Any] | None:
    """The result of a run that is finished and was made by this very recipe; None where there is none yet."""
    if not run.finished:
        return None
    run.check_resumable(recipe)
    return run.read("result.json")


def summarise(results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean and spread of the test accuracies of several runs, by test set and routing.

    >>> from capsroute.training.fit import summarise
    >>> runs = [{"seed": seed, "tests": {"digits": {"as_trained": {"accuracy": 0.9 + seed / 10}}}} for seed in (0, 1)]
    >>> summary = summarise(runs)["tests"]["digits"]["as_trained"]
    >>> round(summary["mean"], 3), round(summary["spread"], 3), summary["n"]
    (0.95, 0.071, 2)
    """
    tests: dict[str, dict[str, Any]] = {}
    for name, tested in results[0]["tests"].items():
        tests[name] = {}
        for routing in tested:
            values = [result["tests"][name][routing]["accuracy"] for result in results]
            mean, spread = mean_and_spread(values)
            tests[name][routing] = {"mean": mean, "spread": spread, "n": len(values), "values": values}
    return {"seeds": [result["seed"] for result in results], "tests": tests}


def _check_labels(model: nn.Module, splits: Splits) -> None:
    """Raise ValueError where the data have classes that the model has no score for: margin losses would not notice."""
    classes = getattr(model, "num_classes", None)
    for name, part in {"train": splits.train, "validation": splits.validation, **splits.test}.items():
        labels = getattr(part, "labels", None)
        if classes is None or not isinstance(labels, torch.Tensor) or labels.is_floating_point() or not labels.numel():
            continue
        if int(labels.max()) >= classes:
            raise ValueError(f"labels: the model has {classes} classes, those of {name!r} go up to {int(labels.max())}")


def _create(recipe: Recipe, splits: Splits) -> nn.Module:
    if recipe.model.name is None:
        raise ValueError("model.name: the recipe names no model, and none was given")
    arguments = model_arguments(splits, recipe)
    try:
        model = create_model(recipe.model.name, recipe.model.pretrained, **arguments)
        if recipe.model.freeze:
            model.freeze_features()
        return model
    except (TypeError, ValueError, RuntimeError, ArithmeticError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"model.arguments: {recipe.model.name!r} cannot be made of {arguments}: {reason}") from error


def _with_best_weights(loop: Loop) -> nn.Module:
    """The trained model, or the whole copy of a sharded one, with the weights that the first process kept."""
    model = loop.template or loop.model
    if loop.world.first:
        load_weights(model, loop.folder.best)
    if loop.world.size > 1:
        model.load_state_dict(loop.world.from_first(model.state_dict() if loop.world.first else {}))
    return model


def _training_facts(loop: Loop) -> dict[str, Any]:
    best = loop.best or loop.history[-1]
    return {
        "train_seconds": loop.history[-1]["seconds"],
        "epochs": loop.step // len(loop.train),
        "steps": loop.step,
        "best_epoch": best["epoch"],
        "validation_accuracy": best.get("validation_accuracy"),
    }
