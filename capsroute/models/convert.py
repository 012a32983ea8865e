"""Weights that others published (Tsai et al. 2020, Heinsen 2019, gram-ai's CapsNet), brought into the models here."""

import os
import pickle  # for its error only
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from capsroute.models.files import assign
from capsroute.models.heinsen import HeinsenVision
from capsroute.models.heinsen_text import HeinsenText
from capsroute.models.sabour import CapsNet
from capsroute.models.tsai import ConvCapsNet

State = dict[str, Tensor]

# Old name (a pattern) -> new name. None: nothing that a model here needs.
_Names = list[tuple[str, str | None]]

_ROUTINGS: _Names = [
    (r"routings\.(\d)\.CONST_one", None),
    (r"routings\.(\d)\.W", r"capsules.layers.\1.W"),
    (r"routings\.(\d)\.B", r"capsules.layers.\1.bias"),
    (r"routings\.(\d)\.beta_use", r"capsules.layers.\1.routing.beta_use"),
    (r"routings\.(\d)\.beta_ign", r"capsules.layers.\1.routing.beta_ignore"),
]
_VISION: _Names = [
    *_ROUTINGS,
    (r"convolve\.(.*)", r"convolutions.\1"),
    (r"compute_a\.(.*)", r"scores.\1"),
    (r"compute_mu\.(.*)", r"poses.\1"),
]
_TEXT: _Names = [*_ROUTINGS, (r"depth_emb", "depth_embedding"), (r"detect_parts\.(.*)", r"detect.\1")]


def load_published(
    model: nn.Module, weights: str | os.PathLike[str] | Mapping[str, Any], num_routing: int | None = None
) -> nn.Module:
    """Copy a published state dict, or the .pt file that holds one, into a model; the model, in evaluation mode.

    Heinsen 2019: `heinsen_smallnorb`, and `heinsen_sst` with `norm_first=False` (the order of the authors' code).

    Tsai et al. 2020: `tsai_simple_*`, `tsai_resnet_*` and `tsai_multimnist_*`. How often these weights route is
    `num_routing`, or what the file says under that name (its own, or in `args` or `config`); where neither says it the
    model's own number stays, with a warning.

    gram-ai (the PyTorch repository capsule-networks): `capsnet`. Their routing takes its softmax over children, where
    Sabour et al. 2017 have parents: the weights are theirs, the routing is the paper's.

    >>> import capsroute as cr
    >>> model = cr.create_model("heinsen_sst", norm_first=False)
    >>> cr.models.load_published(model, {})
    Traceback (most recent call last):
    capsroute.models.files.ModelFileError: weights: these weights do not fit the model:
    ...
    """
    given, source = (weights, "weights") if isinstance(weights, Mapping) else (_read(weights), str(weights))
    for kind, convert in _CONVERTERS:
        if isinstance(model, kind):
            assign(model, convert(_unwrapped(given, source), model), source)
            if isinstance(model, ConvCapsNet):
                _set_iterations(model, num_routing or _said_iterations(given), source)
            return model.eval()
    kinds = ", ".join(kind.__name__ for kind, _ in _CONVERTERS)
    raise ValueError(f"model: expected one of {kinds}, got {type(model).__name__}")


def _read(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    try:
        given = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, EOFError, RuntimeError) as error:
        raise ValueError(f"{path}: expected a file of tensors, found something else ({error})") from None
    if not isinstance(given, Mapping):
        raise ValueError(f"{path}: expected a state dict, found a {type(given).__name__}")
    return given


def _unwrapped(given: Mapping[str, Any], source: str) -> State:
    """The state dict itself: a training script keeps it under "net", DataParallel puts "module." before each name."""
    state = given.get("net", given)
    if not isinstance(state, Mapping):
        raise ValueError(f"{source}: expected a state dict under 'net', found a {type(state).__name__}")
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise ValueError(f"{source}: expected names with tensors, found {name!r} with a {type(tensor).__name__}")
    return {name.removeprefix("module."): tensor for name, tensor in state.items()}


def _said_iterations(given: Mapping[str, Any]) -> int | None:
    """How often a checkpoint says that it routes."""
    for place in (given, *(given.get(name) for name in ("args", "config", "params"))):
        said = place.get("num_routing") if isinstance(place, Mapping) else None
        if isinstance(said, int) and not isinstance(said, bool):
            return said
    return None


def _set_iterations(model: ConvCapsNet, iterations: int | None, source: str) -> None:
    own = model.capsules.iterations
    if iterations is None:
        message = "does not say how often it routes (the authors' num_routing)"
        warnings.warn(f"{source} {message}; the model routes {own} times: say num_routing=", stacklevel=3)
        return
    if iterations < 1:
        raise ValueError(f"num_routing: expected a whole number >= 1, got {iterations!r}")
    for layer in model.routed_layers().values():
        layer.routing.iterations = iterations  # type: ignore[assignment]
    model.capsules.iterations = iterations
    router = next(iter(model.routed_layers().values())).routing
    model.config = {**model.config, "routing": router.config()}


def _gram_ai(state: State, model: nn.Module) -> State:
    """`primary_capsules.capsules.K` is number K of every capsule's pose, a channel for each capsule."""
    found = {re.sub(r"^decoder\.(\d)\.", r"decoder.layers.\1.", name): tensor for name, tensor in state.items()}
    found = {re.sub(r"^conv1\.", "convolution.", name): tensor for name, tensor in found.items()}
    for kind in ("weight", "bias"):
        names = [f"primary_capsules.capsules.{k}.{kind}" for k in range(len(found))]
        parts = [found.pop(name) for name in names if name in found]
        if parts:
            found[f"primary_capsules.poses.{kind}"] = torch.stack(parts, 1).flatten(0, 1)  # [n*k, ...]
    routes = found.pop("digit_capsules.route_weights", None)
    if routes is not None and routes.dim() == 4:
        found["class_capsules.W"] = routes.transpose(0, 1).contiguous()  # [j, i, k, o] -> [i, j, k, o]
    return found


def _renamed(state: State, names: _Names) -> State:
    renamed = {}
    for name, tensor in state.items():
        pattern, new = next(((old, new) for old, new in names if re.fullmatch(old, name)), (".*", name))
        if new is not None:
            renamed[re.sub(f"^{pattern}$", new, name)] = tensor
    return renamed


_INVERTED_ATTENTION: _Names = [
    # The residual backbone's two stages count their blocks from 0; here blocks are counted through.
    *((rf"(?:pre_caps\.)+3\.{n}\.(.*)", rf"backbone.{3 + n}.\1") for n in range(3)),
    *((rf"(?:pre_caps\.)+4\.{n}\.(.*)", rf"backbone.{6 + n}.\1") for n in range(4)),
    (r"(?:pre_caps\.)+(\d\..*)", r"backbone.\1"),
    (r"pc_layer\.(.*)", r"primary_capsules.poses.\1"),
    (r"nonlinear_act\.(.*)", r"primary_capsules.norm.\1"),
    (r"capsule_layers\.(\d+)\.w", r"capsules.layers.\1.W"),
    (r"capsule_layers\.(\d+)\.nonlinear_act\.(.*)", r"capsules.layers.\1.routing.layer_norm.\2"),
    (r"final_fc\.(.*)", r"class_scores.classifier.\1"),
]
_BLOCK: _Names = [
    (r"(backbone\.\d)\.conv1\.(.*)", r"\1.first.0.\2"),
    (r"(backbone\.\d)\.bn1\.(.*)", r"\1.first.1.\2"),
    (r"(backbone\.\d)\.conv2\.(.*)", r"\1.second.0.\2"),
    (r"(backbone\.\d)\.bn2\.(.*)", r"\1.second.1.\2"),
]


def _inverted_attention(state: State, model: nn.Module) -> State:
    layers = cast(ConvCapsNet, model).routed_layers()
    own = model.state_dict()
    renamed = _renamed(_renamed(state, _INVERTED_ATTENTION), _BLOCK)
    for name, tensor in renamed.items():
        layer = layers.get(name.removesuffix(".W"))
        if layer is not None:
            renamed[name] = _transforms(tensor, matrix=layer.rows > 1)
        elif name in own and tensor.dim() == 1 and tensor.numel() == own[name].numel():
            renamed[name] = tensor.view_as(own[name])  # LayerNorm's numbers, as a matrix pose
    return renamed


def _transforms(w: Tensor, matrix: bool) -> Tensor:
    """Tsai et al.'s w as W [i,j,k,o], where child i is (capsule, kernel row, kernel column).

    Matrix poses come as [n,x,d,m] or [k,l,n,x,d,m], vector poses as [n,x,m,d] or [k,l,n,x,m,d].
    """
    w = w.movedim(-1 if matrix else -2, -3)  # [..., m, x, d]
    return w if w.dim() == 4 else w.permute(2, 0, 1, 3, 4, 5).flatten(0, 2)


_CONVERTERS: list[tuple[type[nn.Module], Callable[[State, nn.Module], State]]] = [
    (HeinsenVision, lambda state, model: _renamed(state, _VISION)),
    (HeinsenText, lambda state, model: _renamed(state, _TEXT)),
    (ConvCapsNet, _inverted_attention),
    (CapsNet, _gram_ai),
]
