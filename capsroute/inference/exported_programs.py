"""A network as a graph of plain torch operators with a free batch size: ONNX, torch.export and AOTInductor files, and
what is written into them about the network."""

import copy
import json
import logging
import warnings
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from capsroute import __version__, form
from capsroute.extras import named_extra
from capsroute.inference.folding import folded_layers
from capsroute.layers import RoutedLayer


class Predictor(nn.Module):
    """images [b,c,h,w] -> (scores [b,classes], poses [b,j,a,o]), or scores alone where a model has no class capsules.

    >>> import torch, capsroute as cr
    >>> from capsroute.inference.exported_programs import Predictor
    >>> scores, poses = Predictor(cr.create_model("capsnet_small", image_size=8))(torch.rand(2, 1, 8, 8))
    >>> scores.shape, poses.shape
    (torch.Size([2, 10]), torch.Size([2, 10, 1, 8]))
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        shape = tuple(getattr(model, "input_shape", ()))
        if len(shape) != 3 or None in shape:
            raise ValueError(f"model: expected one for images of one size, got input_shape {shape}")
        self.input_shape: tuple[int, int, int] = shape
        self.model = copy.deepcopy(model).eval()
        if getattr(model, "decoder", None) is not None:
            self.model.register_module("decoder", None)
        with torch.no_grad():
            self.has_poses = getattr(self.model(random_images(self, 1)), "poses", None) is not None

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        output = self.model(images)
        if isinstance(output, Tensor):  # a module of the user's own
            return (output,)
        return (output.scores, output.poses) if self.has_poses else (output.scores,)

    @property
    def output_names(self) -> list[str]:
        """A name for each output."""
        return ["scores", "poses"] if self.has_poses else ["scores"]


def random_images(predictor: Predictor, batch: int) -> Tensor:
    """Images of the right size, device and dtype to try a network with; always the same."""
    weight = next(predictor.parameters())
    images = torch.rand(batch, *predictor.input_shape, generator=torch.Generator().manual_seed(batch))
    return images.to(weight)


KEY = "capsroute"  # under which a file keeps it
Normalise = tuple[Sequence[float], Sequence[float]]


def describe(
    model: nn.Module, outputs: Sequence[str], classes: Sequence[str] | None, normalise: Normalise | None
) -> dict[str, Any]:
    """Plain data that a program in any language can read from JSON.

    >>> import capsroute as cr
    >>> from capsroute.inference.exported_programs import describe
    >>> about = describe(cr.create_model("capsnet_small", image_size=8), ["scores", "poses"], None, None)
    >>> about["inference"], about["input"]["shape"], about["classes"][:2]
    ('as trained', ['batch', 1, 8, 8], ['0', '1'])
    """
    preprocessing = getattr(model, "preprocessing", None)
    record = None if preprocessing is None else preprocessing.record()  # type: ignore[operator]
    if classes is None and record is not None:
        classes = record["classes"]
    count = getattr(model, "num_classes", None if classes is None else len(classes))
    if count is None:
        raise ValueError(f"classes: expected a name for each class of {type(model).__name__}, got none")
    names = [str(number) for number in range(count)] if classes is None else list(classes)
    if len(names) != count:
        raise ValueError(f"classes: expected {count} names, one for each class of the model, got {len(names)}")
    channels, height, width = model.input_shape  # type: ignore[misc]
    mean_std = _mean_std(normalise, channels)
    return {
        "library": KEY,
        "version": __version__,
        "torch": torch.__version__,
        "model": str(getattr(model, "name", type(model).__name__)),
        "inference": _inference(model),
        "classes": names,
        "input": {
            "name": "images",
            "shape": ["batch", channels, height, width],
            "range": [0.0, 1.0],
            "normalise": mean_std,
        },
        # What the file does by itself (mean, deviation), and what is left to do with an image of another size.
        "preprocessing": None if record is None else record | {"classes": names},
        "outputs": list(outputs),
        "scores": str(getattr(model, "score_kind", "logit")),
        "several": getattr(model, "default_loss", None) == "binary_cross_entropy",  # classes in an image
    }


def _mean_std(normalise: Normalise | None, channels: int) -> dict[str, list[float]] | None:
    if normalise is None:
        return None
    mean, std = (list(map(float, values)) for values in normalise)
    if len(mean) != channels or len(std) != channels:
        raise ValueError(f"normalise: expected mean and std of {channels} channels, got {mean} and {std}")
    return {"mean": mean, "std": std}


def _inference(model: nn.Module) -> str:
    routed = [layer for layer in model.modules() if isinstance(layer, RoutedLayer)]
    if folded_layers(model):
        return "folded" if not routed else "partly folded"
    given = [layer.routing.given_coefficients() is not None for layer in routed]
    return "fast" if given and all(given) else "as trained"


Runner = Callable[[Tensor], list[Tensor]]


def plain_program(predictor: Predictor) -> ExportedProgram:
    """The network as torch.export sees it, with the operators of the capsule form written in plain torch ones."""
    # An example of two images: sizes 0 and 1 would be taken for constants.
    batch = Dim("batch", max=2**31 - 1)  # torch 2.6 finds that slices rule the largest int64 out, and asks for a bound
    program = torch.export.export(predictor, (random_images(predictor, 2),), dynamic_shapes=({0: batch},))
    program = program.run_decompositions(form.decompositions())
    for node in program.graph.nodes:
        # What could be viewed as it lay in memory may lie otherwise next time: a convolution of one image often does.
        if node.target is torch.ops.aten.view.default:
            node.target = torch.ops.aten.reshape.default
    program.graph_module.recompile()
    return program


def save_onnx(predictor: Predictor, path: Path, metadata: dict[str, Any]) -> None:
    """One ONNX file, weights inside, metadata in its `metadata_props`."""
    with _quiet():
        program = torch.onnx.export(
            plain_program(predictor).run_decompositions({torch.ops.aten.digamma.default: _digamma}),
            (random_images(predictor, 2),),
            dynamo=True,
            verbose=False,
            input_names=["images"],
            output_names=predictor.output_names,
            opset_version=metadata["opset"],
            dynamic_shapes=({0: "batch"},),
        )
    assert program is not None
    found = program.model.opset_imports.get("")
    if found != metadata["opset"]:  # torch says so in a log and goes on
        message = "expected one that torch and onnxscript can write this network in"
        raise ValueError(f"opset: {message}, such as {found}, got {metadata['opset']}")
    program.model.metadata_props[KEY] = json.dumps(metadata)
    program.save(path, external_data=False)


def _digamma(x: Tensor) -> Tensor:
    """For x > 0, as variational Bayes asks it: ONNX has no operator. Six steps up (Abramowitz & Stegun, 6.3.5), where
    three terms of the series (6.3.18) are enough."""
    up, below = x + 6, sum(1 / (x + step) for step in range(6))
    square = 1 / up.square()
    return up.log() - 0.5 / up - square * (1 / 12 - square * (1 / 120 - square / 252)) - below


def load_onnx(path: Path) -> Runner:
    """The file as onnxruntime runs it on a CPU."""
    session = _session(path)

    def run(images: Tensor) -> list[Tensor]:
        if len(images) == 0:  # over some graphs it would raise, over others end the process (SIGFPE in a convolution)
            raise ValueError("images: expected one or more, got none, which onnxruntime cannot take")
        return [torch.from_numpy(array) for array in session.run(None, {"images": images.numpy()})]

    return run


def _session(path: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@named_extra
def run_exported(path: Path) -> tuple[Runner, dict[str, Any]]:
    """An ONNX or torch.export file as a function of images, and what it says about itself; a ValueError that names the
    file where it is damaged."""
    try:
        with _quiet():  # of a damaged file torch logs a traceback too
            if path.suffix == ".onnx":
                about = _session(path).get_modelmeta().custom_metadata_map[KEY]
            else:
                kept = {f"{KEY}.json": ""}
                torch.export.load(path, extra_files=kept)
                about = kept[f"{KEY}.json"]
            return PROGRAMS[path.suffix[1:]][1](path), json.loads(about)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # neither library names the errors of a damaged file
        if _is_machine_code(path):
            runs = "torch._inductor.aoti_load_package runs it"
            raise ValueError(f"{path}: expected ONNX or torch.export, found machine code (aoti); {runs}") from None
        raise ValueError(f"{path}: expected a file that `capsroute export` wrote, found another ({error})") from None


def _is_machine_code(path: Path) -> bool:
    """Whether it is a package of AOTInductor's, whose name ends as that of a torch.export file does."""
    try:
        with zipfile.ZipFile(path) as package:
            return any("/aotinductor/" in name for name in package.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


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
    quiet = {"torch.onnx": logging.ERROR, "torch.export": logging.ERROR, "onnxscript": logging.CRITICAL}
    loggers = {logging.getLogger(name): level for name, level in quiet.items()}
    levels = {logger: logger.level for logger in loggers}
    for logger, level in loggers.items():
        logger.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for logger, level in levels.items():
            logger.setLevel(level)
