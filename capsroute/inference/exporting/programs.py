"""A network as a graph of plain torch operators with a free batch size: ONNX, torch.export and AOTInductor files."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram

from capsroute import form
from capsroute.inference.exporting.metadata import KEY
from capsroute.inference.exporting.predictor import Predictor, random_images

__all__ = ["PROGRAMS", "Runner"]

Runner = Callable[[Tensor], list[Tensor]]


def plain_program(predictor: Predictor) -> ExportedProgram:
    """The network as torch.export sees it, with the operators of the capsule form written in plain torch ones."""
    # An example of two images: sizes 0 and 1 would be taken for constants.
    program = torch.export.export(predictor, (random_images(predictor, 2),), dynamic_shapes=({0: Dim("batch")},))
    return program.run_decompositions(form.decompositions())


def save_onnx(predictor: Predictor, path: Path, metadata: dict[str, Any]) -> None:
    """One ONNX file, weights inside, metadata in its `metadata_props`."""
    with _quiet():
        program = torch.onnx.export(
            plain_program(predictor),
            (random_images(predictor, 2),),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=predictor.output_names,
            opset_version=metadata["opset"],
            dynamic_shapes=({0: "batch"},),
        )
    assert program is not None
    program.model.metadata_props[KEY] = json.dumps(metadata)
    program.save(path, external_data=False)


def load_onnx(path: Path) -> Runner:
    """The file as onnxruntime runs it on a CPU."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return lambda images: [torch.from_numpy(array) for array in session.run(None, {"images": images.numpy()})]


def run_exported(path: Path) -> tuple[Runner, dict[str, Any]]:
    """An ONNX or torch.export file as a function of images, and what it says about itself; a ValueError that names the
    file where it is damaged."""
    try:
        if path.suffix == ".onnx":
            import onnxruntime

            session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
            about = session.get_modelmeta().custom_metadata_map[KEY]
        else:
            kept = {f"{KEY}.json": ""}
            torch.export.load(path, extra_files=kept)
            about = kept[f"{KEY}.json"]
        return PROGRAMS[path.suffix[1:]][1](path), json.loads(about)
    except ModuleNotFoundError as error:
        message = "onnxruntime is missing; install it with: pip install 'capsroute[export]'"
        raise ModuleNotFoundError(message, name=error.name) from error
    except Exception as error:  # neither library names the errors of a damaged file
        raise ValueError(f"{path}: expected a file that `capsroute export` wrote, found another ({error})") from None


def save_pt2(predictor: Predictor, path: Path, metadata: dict[str, Any]) -> None:
    """What `torch.export.load` reads, in a process that need not have capsroute."""
    with _quiet():
        torch.export.save(plain_program(predictor), path, extra_files={f"{KEY}.json": json.dumps(metadata)})


def load_pt2(path: Path) -> Runner:
    """The file as torch.export runs it."""
    module = torch.export.load(path).module()
    return lambda images: list(module(images))


def save_aoti(predictor: Predictor, path: Path, metadata: dict[str, Any]) -> None:
    """What `torch._inductor.aoti_load_package` reads: machine code for this kind of machine."""
    configs = {"aot_inductor.metadata": {KEY: json.dumps(metadata)}}
    with torch.no_grad(), _quiet():
        torch._inductor.aoti_compile_and_package(
            plain_program(predictor), package_path=str(path), inductor_configs=configs
        )


def load_aoti(path: Path) -> Runner:
    """The package as AOTInductor runs it."""
    module = torch._inductor.aoti_load_package(str(path))
    return lambda images: list(module(images))


# How each format is written, and run again.
PROGRAMS = {"onnx": (save_onnx, load_onnx), "pt2": (save_pt2, load_pt2), "aoti": (save_aoti, load_aoti)}


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch tells itself: its own deprecations, and operators of packages that nobody needs here."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
