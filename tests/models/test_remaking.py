"""Files that are not what they should be: one error, with the file's name, at once."""

import json
import random
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.modules.module import register_module_parameter_registration_hook

import capsroute as cr
from capsroute.models import ModelFileError
from tests.data.memory import little_memory


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    torch.manual_seed(0)
    sizes = {"image_size": 8, "channels": 4, "primary_capsules": 2, "num_classes": 3, "decoder": (4, 4)}
    model = cr.create_model("capsnet_small", **sizes)
    model.set_preprocessing(mean=[0.1], deviation=[0.3], classes=["a", "b", "c"])
    cr.save_model(model, folder / "model")
    cr.inference.export(cr.inference.fold(model, "uniform"), folder / "folded.safetensors")
    cr.inference.export(model, folder / "dynamic.safetensors")
    return folder


@pytest.fixture
def saved(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "saved")


@contextmanager
def little_is_made(numbers=0, parameters=500):
    """Fail if more is allocated inside: numbers of parameters in memory, parameters at all, megabytes at once."""
    made = []
    hook = register_module_parameter_registration_hook(lambda module, name, parameter: made.append(parameter))
    try:
        with little_memory():
            yield
    finally:
        hook.remove()
    made = [parameter for parameter in made if parameter is not None]
    assert len(made) <= parameters
    assert sum(parameter.numel() for parameter in made if not parameter.is_meta) <= numbers


def changed(saved, **arguments):
    path = saved / "model" / "config.json"
    description = json.loads(path.read_text())
    description["arguments"].update(arguments)
    path.write_text(json.dumps(description))
    return saved / "model"


def test_a_routing_of_ones_own_that_nobody_registered_says_what_to_import(saved):
    with pytest.raises(ModelFileError, match=r"got 'of_mine'\); one of your own: first import .* --import MODULE"):
        cr.load_model(changed(saved, routing="of_mine"))


@pytest.mark.parametrize(
    "arguments",
    [{"num_classes": 100_000_000}, {"channels": 10**9}, {"decoder": [10**8, 10**8]}, {"channels": 10**30}],
)
def test_a_description_that_asks_for_more_than_the_file_holds_costs_nothing(saved, arguments):
    with little_is_made(), pytest.raises(ModelFileError, match="model"):
        cr.load_model(changed(saved, **arguments))


def test_a_network_without_end_is_given_up(tmp_path):
    name = "zhao_huang_resnet20"
    cr.save_model(cr.create_model(name, **cr.models.small_options(name)), tmp_path / "model")
    with little_is_made(), pytest.raises(ModelFileError, match=r"more than .* parameters"):
        cr.load_model(changed(tmp_path, depth=6 * 10**8 + 2))


def test_a_folded_file_that_asks_for_more_than_it_holds_costs_nothing(saved):
    path = saved / "folded.safetensors"
    from safetensors import safe_open

    with safe_open(path, "pt") as stored:
        about = json.loads(stored.metadata()["capsroute"])
    about["remake"]["arguments"].update(num_classes=10**7, decoder=None)
    about["remake"]["preprocessing"] = None
    tensors = {name: tensor for name, tensor in load_file(path).items() if not name.startswith("decoder")}
    save_file(tensors, path, {"capsroute": json.dumps(about)})
    said = r"folded.safetensors: expected a model of about .* numbers"
    with little_is_made(), pytest.raises(ModelFileError, match=said):
        cr.inference.load_exported(path)


def test_folded_weights_are_read_where_they_can_be(saved):
    with pytest.raises(ValueError, match=r"folded; cr\.inference\.load_exported reads it"):
        cr.load_model(saved / "folded.safetensors")
    assert cr.load_model(saved / "dynamic.safetensors").classes == ("a", "b", "c")


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("name", ["model/config.json", "model/model.safetensors", "folded.safetensors"])
def test_a_mutated_file_loads_or_is_one_error_with_its_name(saved, name, seed):
    """Bytes replaced, left out, doubled, cut off, or a number in the text made another."""
    path, draw = saved / name, random.Random(seed)
    content = bytearray(path.read_bytes())
    near = min(len(content), 3000)  # headers are where structure is
    for _ in range(draw.randint(1, 4)):
        place = draw.randrange(near)
        kind = draw.randrange(5)
        if kind == 0:
            content[place] = draw.randrange(256)
        elif kind == 1:
            del content[place : place + draw.randint(1, 40)]
        elif kind == 2:
            content[place:place] = content[place : place + draw.randint(1, 40)]
        elif kind == 3:
            content[place:place] = draw.choice([b"[", b"{", b"-", b"9999999", b"null", b'"', b"1e400", b"NaN"])
        else:
            del content[draw.randrange(len(content)) :]
        near = min(max(len(content), 1), 3000)
        if not content:
            content = bytearray(b"\0")
    path.write_bytes(content)
    load = cr.inference.load_exported if name.startswith("folded") else cr.load_model
    found = ""
    with little_is_made(numbers=100_000):
        try:
            load(path if name.startswith("folded") else path.parent)
        except ModelFileError as error:
            found = str(error)
    assert not found or path.name in found or str(path.parent) in found
