"""report.md of a run, with its pictures; all pictures of it that can be drawn; and several runs beside each other."""

import os
import shlex
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from capsroute.analysis.figures import Drawn, check_figures, draw_figure, draw_page, list_figures
from capsroute.files import write_atomically
from capsroute.training.data import Splits
from capsroute.training.evaluation import VARIANTS
from capsroute.training.recipe import Recipe
from capsroute.training.run import Run
from capsroute.training.run_folder import RunFolder

COLUMNS = {"accuracy": ".2%", "images": ",", "images_per_second": ",.0f"}  # and how they are written
IN_REPORT = ("training", "confusions", "reconstructions", "master_matrix")


def write_report(folder: RunFolder, model: nn.Module | None = None, splits: Splits | None = None) -> Path:
    """Write report.md from what lies in the folder; with model and splits also the figures that need them."""
    recipe, result = folder.recipe(), folder.read("result.json")
    figures: list[tuple[str, str]] = []
    if recipe.evaluation.pictures:
        device = "cpu" if model is None else next(model.parameters()).device
        run = Run(folder.path, device, recipe=recipe, model=model, splits=splits)
        figures = draw_for_report(run, anew=model is not None and splits is not None and bool(splits.test))
    tested = _table(["test set", "routing", "accuracy", "images", "images/s"], result_rows(result))
    lines = [recipe.description]
    if recipe.paper is not None:
        lines.append(f"{recipe.paper.title}; {recipe.paper.row}; published: {published(recipe)}.")
    introduction = "\n".join(line for line in lines if line)
    parts = [
        f"# Smoke test of {recipe.name}: two steps on noise, not a result" if recipe.smoke else f"# {recipe.name}",
        *([] if recipe.smoke else [introduction, tested]),
        _facts(folder, recipe, result),
        *(f"![{title}]({name})" for name, title in figures),
    ]
    path = folder.path / "report.md"
    write_atomically(path, ("\n\n".join(part for part in parts if part) + "\n").encode())
    return path


def result_rows(result: dict[str, Any]) -> list[list[str]]:
    """A line for each test set and routing: names, accuracy, images, images per second."""
    return [
        [name, VARIANTS[routing], *(f"{metrics[key]:{form}}" for key, form in COLUMNS.items())]
        for name, tested in result["tests"].items()
        for routing, metrics in tested.items()
    ]


def published(recipe: Recipe) -> str:
    """The published accuracy in words; a dash where there is none."""
    if recipe.paper is None or recipe.paper.published is None:
        return "-"
    spread = "" if recipe.paper.spread is None else f" ± {recipe.paper.spread:g}"
    return f"{recipe.paper.published:g}{spread} %"


def _facts(folder: RunFolder, recipe: Recipe, result: dict[str, Any]) -> str:
    environment = folder.read("environment.json")
    validation = result["validation_accuracy"]
    chosen = "the last epoch"
    if validation is not None:
        chosen = f"epoch {result['best_epoch']}, best by validation ({validation:.2%})"
    return _table(
        ["what", "value"],
        [
            ["model", f"{recipe.model.name or 'given in Python'}, {result['parameters']:,} parameters"],
            ["weights", chosen],
            ["training", f"{result['epochs']} epochs, {result['steps']:,} steps, {result['train_seconds']:.0f} s"],
            ["hardware", f"{environment['hardware']}, {environment['processes']} process(es)"],
            ["versions", ", ".join(f"{name} {version}" for name, version in environment["versions"].items())],
            ["revision", environment["revision"] or "-"],
            ["seed", str(result["seed"])],
            ["command", f"`{shlex.join(environment['command'])}`"],
        ],
    )


def _table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# The columns of `compare_runs`, with their units.
COMPARED = ("run", "validation (%)", *(f"{name} (%)" for name in VARIANTS.values()), "training (s)")


def compare_runs(folders: Sequence[str | os.PathLike[str]]) -> list[list[str]]:
    """A line for each run that is no smoke test, with the columns of `COMPARED`; the model stands under the run's name.

    A folder that `--seeds` made is one line: mean and spread over its finished runs.
    """
    rows = []
    for path in folders:
        runs = [(folder.recipe(), folder.read("result.json")) for folder in _runs_in(Path(path))]
        runs = [(recipe, result) for recipe, result in runs if not recipe.smoke]
        if runs:
            rows.append(_compared(path, runs[0][0], [result for _, result in runs]))
    return rows


def _runs_in(path: Path) -> list[RunFolder]:
    """The run in a folder, or the finished ones of a folder of seeds, or those in the folder of smoke tests."""
    if path.name == "smoke" and not RunFolder(path).exists:
        return [folder for folder in map(RunFolder, sorted(path.iterdir())) if folder.finished]
    seeds = [RunFolder(folder) for folder in sorted(path.glob("seed-*"), key=lambda seed: (len(seed.name), seed.name))]
    finished = [folder for folder in seeds if folder.finished]
    return [RunFolder(path)] if RunFolder(path).exists or not finished else finished


def _compared(path: str | os.PathLike[str], recipe: Recipe, results: list[dict[str, Any]]) -> list[str]:
    seeds = f", {len(results)} seeds" if len(results) > 1 else ""
    name = f"{os.fspath(path)}\n  {recipe.model.name or '-'}, {results[0]['parameters']:,} parameters{seeds}"
    tested = [
        _per_cent([result["test"][variant]["accuracy"] for result in results if variant in result["test"]])
        for variant in VARIANTS
    ]
    validation = [result["validation_accuracy"] for result in results if result["validation_accuracy"] is not None]
    seconds = mean_and_spread([result["train_seconds"] for result in results])[0]
    return [name, _per_cent(validation), *tested, f"{seconds:,.0f}"]


def _per_cent(values: list[float]) -> str:
    """Mean, and spread where there are several; a dash where there are none."""
    if not values:
        return "-"
    mean, spread = mean_and_spread([100 * value for value in values])
    return f"{mean:.2f}" if len(values) == 1 else f"{mean:.2f} ± {spread:.2f}"


def mean_and_spread(values: list[float]) -> tuple[float, float]:
    """Mean and sample standard deviation; the spread of one value is zero.

    >>> from capsroute.training.report import mean_and_spread
    >>> mean_and_spread([1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def draw_run(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    only: list[str] | None = None,
    beside: Sequence[str | os.PathLike[str]] = (),
    images: int | None = None,
    report: Callable[[Drawn], None] = lambda drawn: None,
    data: str | os.PathLike[str] | None = None,
) -> Path:
    """Draw all that applies to a run into `out` (None: RUN/figures); the page that shows it.

    Beside each NAME.png lie NAME.svg and NAME.npz, the numbers. `only` names the pictures to make, `beside`
    other runs whose training is shown beside this one's. Averages are over `images` images at most: fewer than
    the captions' hundreds and thousands for a large network without a GPU. `data` is where the run's own images are,
    if they moved.

    >>> import tempfile, capsroute as cr
    >>> quick = cr.training.load_recipe("quickstart", ["training.max_steps=1", "evaluation.pictures=false"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = cr.training.fit(None, None, quick, folder, reporter=cr.training.SilentReporter())
    ...     cr.analysis.draw_run(folder, only=["reconstructions"]).name
    'index.html'
    """
    check_figures(only)
    if images is not None and images < 1:
        raise ValueError(f"images: expected a number >= 1, got {images}")
    opened = Run(run, limit=images, beside=beside, data=data)
    return draw_page(opened, Path(out) if out is not None else opened.folder.path / "figures", only, report)


def draw_for_report(run: Run, anew: bool) -> list[tuple[str, str]]:
    """The few figures that every report shows: (file, title) of each. Without `anew`, what needs the model or data is
    shown as it was drawn when the run ended."""
    folder, shown = run.folder.path / "figures", []
    for figure in list_figures():
        if figure.name in IN_REPORT:
            if anew or figure.name == "training":
                draw_figure(figure, run, folder)
            if (folder / f"{figure.name}.png").is_file():
                shown.append((f"figures/{figure.name}.png", figure.title))
    return shown
