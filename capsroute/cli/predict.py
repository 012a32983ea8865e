"""`capsroute predict`: what is in these pictures."""

import csv
import io
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from capsroute.cli.failures import explained
from capsroute.cli.names import completing, list_tags
from capsroute.data import DataError
from capsroute.data.errors import DataWarning
from capsroute.files import write_atomically
from capsroute.prediction import Prediction, find_pictures, open_classifier, predict

Model = Annotated[
    str,
    typer.Argument(
        help="A run folder, a saved model, an exported file, or packaged weights by name.",
        autocompletion=completing(list_tags),
    ),
]
Files = Annotated[list[Path], typer.Argument(help="Pictures, and folders of them.")]
Csv = Annotated[Path | None, typer.Option("--csv", help="Write the answers to this file too.")]
Top = Annotated[int, typer.Option(min=1, help="How many classes to name.")]
Strict = Annotated[bool, typer.Option("--strict", help="Stop at the first file that is no picture.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Pictures that go through the network at once.")]


def predict_files(
    model: Model, files: Files, out: Csv = None, top: Top = 1, strict: Strict = False, batch_size: BatchSize = 64
) -> None:
    """Name the class of each picture, with its probability; pictures may have any size."""
    with explained():
        classifier = open_classifier(model)
        folders = {path for path in files if path.is_dir()}
        pictures = [file for path in files for file in (find_pictures(path) if path in folders else [path])]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)  # they are listed below, each with its file
            found = predict(classifier, pictures, top, batch_size, strict, progress=None)
        for prediction in found:
            _say(prediction)
        if out is not None:
            # Names of files may be any bytes.
            write_atomically(out, _table(found, top).encode(errors="surrogateescape"))
        _summary(found, folders, classifier.classes)


def _say(prediction: Prediction) -> None:
    if prediction.problem is not None:
        typer.secho(prediction.problem, fg="red", err=True)
        return
    named = ", ".join(f"{name} {share:.1%}" for name, share in zip(prediction.classes, prediction.probabilities))
    typer.echo(f"{prediction.source}: {named}")


def _summary(found: list[Prediction], folders: Iterable[Path], classes: tuple[str, ...]) -> None:
    bad = sum(prediction.problem is not None for prediction in found)
    if bad:
        typer.secho(f"{bad} of {len(found)} files left out", fg="red", err=True)
    if bad == len(found):
        raise DataError("none of the files is a picture that can be read")
    # Pictures in a folder that is called like a class, however deep below it, are taken to be of it, as in training.
    inside = {p: _folders(Path(p.source), folders) for p in found if p.label}
    named = {p: next((name for name in names if name in classes), None) for p, names in inside.items() if names}
    if any(named.values()):
        counted = [p.label == name for p, name in named.items() if name]
        right = f"{sum(counted)} of {len(counted)} ({sum(counted) / len(counted):.2%})"
        typer.echo(f"{right} are of the class that their folder is called")
        for other in sorted({Path(p.source).parent for p, name in named.items() if not name}):
            typer.secho(
                f"{other}: no class of the model is called {other.name!r}; its pictures are not counted", err=True
            )


def _folders(file: Path, given: Iterable[Path]) -> list[str]:
    """Names of the folders that a picture lies in, from the first below the one that was given; that one last."""
    root = next((folder for folder in given if folder in file.parents), None)
    return [] if root is None else [*file.relative_to(root).parent.parts, root.name]


def _table(found: list[Prediction], top: int) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = [
        f"{name}{'' if place == 1 else f'_{place}'}" for place in range(1, top + 1) for name in ("class", "probability")
    ]
    writer.writerow(["file", *columns, "problem"])
    for prediction in found:
        pairs = list(zip(prediction.classes, prediction.probabilities))
        cells = [cell for name, share in pairs for cell in (name, f"{share:.6f}")]
        writer.writerow([prediction.source, *cells, *[""] * (2 * top - len(cells)), prediction.problem or ""])
    return text.getvalue()
