"""Recipes, the training loop, checkpoints, distributed runs."""

from capsroute.extras import naming_extras

with naming_extras():
    from capsroute.training.data import Splits, load_splits
    from capsroute.training.distributed import LostContact
    from capsroute.training.evaluation import evaluate
    from capsroute.training.fit import RunResult, fit, load_run
    from capsroute.training.graphs import GraphedStep, graphed_step
    from capsroute.training.precision import channels_last
    from capsroute.training.progress import Reporter, SilentReporter
    from capsroute.training.recipe import Recipe, RecipeError, list_recipes, load_recipe
    from capsroute.training.report import write_report
    from capsroute.training.run import Run
    from capsroute.training.run_folder import RunFolder
    from capsroute.training.stopping import Interrupted, NonFiniteLoss, OutOfMemory

__all__ = [
    "GraphedStep",
    "Interrupted",
    "LostContact",
    "NonFiniteLoss",
    "OutOfMemory",
    "Recipe",
    "RecipeError",
    "Reporter",
    "Run",
    "RunFolder",
    "RunResult",
    "SilentReporter",
    "Splits",
    "channels_last",
    "evaluate",
    "fit",
    "graphed_step",
    "list_recipes",
    "load_recipe",
    "load_run",
    "load_splits",
    "write_report",
]
