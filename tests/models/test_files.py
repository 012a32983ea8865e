"""Models on disk: whole, exact, and refused with reasons."""

import json
import os
import random
import shutil
from contextlib import contextmanager

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.modules.module import register_module_parameter_registration_hook

import capsroute as cr
from capsroute.layers import FastRouter, InvertedAttentionRouter
from capsroute.models import ModelFileError
from tests.data.memory import little_memory


@pytest.fixture
def model():
    torch.manual_seed(0)
    return cr.create_model("capsnet_small", image_size=8, num_classes=3).eval()


@pytest.fixture
def folder(model, tmp_path):
    cr.save_model(model, tmp_path / "saved")
    return tmp_path / "saved"


def test_a_folder_holds_safetensors_and_json_and_nothing_else(folder):
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    description = json.loads((folder / "config.json").read_text())
    assert description["name"] == "capsnet_small"
    assert description["version"] == cr.__version__
    assert description["arguments"]["num_classes"] == 3


def test_equal_weights_are_equal_files(model, tmp_path):
    files = set()
    for _ in range(12):
        cr.save_model(model, tmp_path)
        files.add((tmp_path / "model.safetensors").read_bytes())
    assert len(files) == 1
    assert torch.equal(load_file(tmp_path / "model.safetensors")["class_capsules.W"], model.class_capsules.W)


def test_saving_again_replaces(model, folder):
    with torch.no_grad():
        model.class_capsules.W.fill_(0.5)
    cr.save_model(model, folder)
    assert cr.load_model(folder).class_capsules.W.eq(0.5).all()
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file(model, folder, monkeypatch, moment):
    before = (folder / "model.safetensors").read_bytes()
    monkeypatch.setattr(os, moment, lambda *arguments: (_ for _ in ()).throw(OSError("disk full")))
    with torch.no_grad():
        model.class_capsules.W.fill_(0.5)
    with pytest.raises(OSError, match="disk full"):
        cr.save_model(model, folder)
    assert (folder / "model.safetensors").read_bytes() == before
    assert len(list(folder.iterdir())) == 2


def test_a_swapped_routing_survives(model, folder):
    model.class_capsules.set_routing(FastRouter(learned=True))
    with torch.no_grad():
        model.class_capsules.routing.coefficients.copy_(torch.rand(32, 3))
    cr.save_model(model, folder)
    again = cr.load_model(folder)
    assert again.class_capsules.routing.config() == {"name": "fast", "learned": True, "activation": "squash"}
    image = torch.rand(2, 1, 8, 8)
    assert torch.equal(again(image).scores, model(image).scores)


def test_a_single_beta_survives_as_one(tmp_path):
    routing = {"name": "heinsen", "single_beta": True}
    model = cr.create_model("capsnet_small", image_size=8, routing=routing)
    with torch.no_grad():
        model.class_capsules.routing.beta_use.normal_()
    cr.save_model(model, tmp_path)
    assert "class_capsules.routing.beta_ignore" not in load_file(tmp_path / "model.safetensors")
    router = cr.load_model(tmp_path).class_capsules.routing
    assert router.beta_ignore is router.beta_use
    assert torch.equal(router.beta_use, model.class_capsules.routing.beta_use)


def test_tensors_tied_by_hand_stay_tied(tmp_path):
    model = cr.create_model("zhao_huang_resnet20", **cr.models.small_options("zhao_huang_resnet20"))
    first, second = model.features[3].first[1], model.features[3].second[1]
    with torch.no_grad():
        first.weight.normal_()
    second.weight = first.weight
    cr.save_model(model, tmp_path)
    block = cr.load_model(tmp_path).features[3]
    assert block.second[1].weight is block.first[1].weight
    assert torch.equal(block.first[1].weight, first.weight)


def test_a_model_made_without_a_registered_name_is_loaded_by_its_class(tmp_path):
    model = cr.models.CapsNet(image_size=9, kernel_size=3, primary_kernel=3, channels=4).eval()
    cr.save_model(model, tmp_path)
    again = cr.load_model(tmp_path)
    assert type(again) is cr.models.CapsNet
    image = torch.rand(2, 1, 9, 9)
    assert torch.equal(again(image).scores, model(image).scores)


def test_half_precision_comes_back_as_the_same_numbers(model, tmp_path):
    cr.save_model(model.half(), tmp_path)
    assert load_file(tmp_path / "model.safetensors")["class_capsules.W"].dtype == torch.float16
    assert torch.equal(cr.load_model(tmp_path).class_capsules.W, model.class_capsules.W.float())


def test_arguments_that_json_cannot_hold_are_refused_before_anything_is_written(tmp_path):
    router = InvertedAttentionRouter(norm=torch.nn.Identity())
    model = cr.create_model("capsnet_small", image_size=8, routing=router)
    with pytest.raises(ValueError, match="expected arguments that JSON can hold"):
        cr.save_model(model, tmp_path / "new")
    assert not (tmp_path / "new").exists()


class TestRefused:
    def test_a_truncated_file(self, folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(ValueError, match=r"model.safetensors: expected a whole safetensors file"):
            cr.load_model(folder)

    def test_a_pickle(self, folder):
        torch.save({"W": torch.zeros(2)}, folder / "model.safetensors")
        with pytest.raises(ValueError, match="expected a whole safetensors file"):
            cr.load_model(folder)

    def test_missing_unexpected_and_misshapen_tensors_are_all_listed(self, folder):
        state = load_file(folder / "model.safetensors")
        del state["convolution.bias"]
        state["stowaway"] = torch.zeros(2, 5)
        state["class_capsules.W"] = torch.zeros(4, 4)
        save_file(state, folder / "model.safetensors")
        with pytest.raises(ValueError, match="do not fit") as error:
            cr.load_model(folder)
        message = str(error.value)
        assert "missing convolution.bias [32]" in message
        assert "unexpected stowaway [2, 5]" in message
        assert "class_capsules.W is [4, 4], expected [32, 3, 8, 8]" in message

    def test_a_folder_without_weights_or_config(self, folder, tmp_path):
        with pytest.raises(ValueError, match=r"found no config\.json"):
            cr.load_model(tmp_path / "nowhere")
        (folder / "model.safetensors").unlink()
        with pytest.raises(ValueError, match=r"expected model\.safetensors"):
            cr.load_model(folder)

    @pytest.mark.parametrize("text", ["{", "[]", '{"name": "capsnet"}'])
    def test_a_config_that_is_none(self, folder, text):
        (folder / "config.json").write_text(text)
        with pytest.raises(ValueError, match=r"config.json: expected"):
            cr.load_model(folder)

    def test_a_model_that_is_not_registered(self, folder):
        path = folder / "config.json"
        path.write_text(path.read_text().replace("capsnet_small", "capsnet_huge"))
        with pytest.raises(ValueError, match="name: expected one of"):
            cr.load_model(folder)


class TestWhere:
    def test_a_run_a_file_a_tag_and_a_name(self, model, tmp_path):
        cr.save_model(model, tmp_path / "run" / "best")
        (tmp_path / "run" / "recipe.toml").write_text("")
        exported = cr.inference.export(model, tmp_path / "exported.safetensors").path
        image = torch.rand(2, 1, 8, 8)
        for source in (tmp_path / "run", tmp_path / "run" / "best" / "model.safetensors", exported):
            assert torch.equal(cr.load_model(source)(image).scores, model(image).scores)
        for name in ("cifar10-routing-pooling", "zhao_huang_resnet20"):
            assert cr.load_model(name).classes[0] == "airplane"

    def test_an_old_run_that_normalised_is_warned_of(self, model, tmp_path):
        cr.save_model(model, tmp_path / "best")
        (tmp_path / "recipe.toml").write_text('[data]\nnormalise = "channels"\n')
        path = tmp_path / "best" / "config.json"
        description = json.loads(path.read_text())
        del description["preprocessing"]
        path.write_text(json.dumps(description))
        with pytest.warns(UserWarning, match=r"cr\.training\.load_run measures them again"):
            cr.load_model(tmp_path)

    def test_a_name_on_the_hub(self, model, monkeypatch):
        asked = []
        monkeypatch.setattr(
            cr.models.CapsuleModel, "from_pretrained", classmethod(lambda cls, name: asked.append(name) or model)
        )
        assert cr.load_model("someone/something") is model
        assert asked == ["someone/something"]

    def test_a_folder_that_is_not_here_is_not_looked_for_on_the_hub(self, model, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(cr.models.CapsuleModel, "from_pretrained", None)
        cr.save_model(model, "runs/images-photos")
        with pytest.raises(ValueError, match=r"no config.json at 'runs/photos'; did you mean 'runs/images-photos'\?"):
            cr.load_model("runs/photos")

    @pytest.mark.parametrize("failure", [ConnectionError("nothing\nin many lines"), ModuleNotFoundError("nothing")])
    def test_a_hub_that_has_nothing_is_one_line(self, monkeypatch, failure):
        def fail(cls, name):
            raise failure

        monkeypatch.setattr(cr.models.CapsuleModel, "from_pretrained", classmethod(fail))
        with pytest.raises(ValueError, match=r"no folder 'some/thing' here, and the Hub gave none: nothing$"):
            cr.load_model("some/thing")

    def test_what_is_nowhere_is_answered_with_what_there_is(self):
        with pytest.raises(ValueError, match=r"source: expected a folder .*; did you mean 'cifar10-routing-pooling'\?"):
            cr.load_model("cifar10-routing-poling")


def test_an_unknown_model_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"got 'capsnet_smal'; did you mean 'capsnet_small'\?"):
        cr.create_model("capsnet_smal")


def test_weights_of_which_any_bit_was_changed_are_refused(model, folder):
    """Only the numbers: a damaged header is noticed by its own reader."""
    path = folder / "model.safetensors"
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    expected = model.state_dict()
    pick = random.Random(0)
    for _ in range(40):
        damaged = bytearray(content)
        damaged[pick.randrange(start, len(content))] ^= 1 << pick.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"model\.safetensors: its checksum does not match"):
            cr.load_model(folder)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[pick.randrange(start)] ^= 1 << pick.randrange(8)
        path.write_bytes(damaged)
        try:
            again = cr.load_model(folder).state_dict()
        except ValueError as error:
            assert str(folder) in str(error)  # noqa: PT017
        else:
            assert all(torch.equal(expected[name], again[name]) for name in expected)


def test_a_module_of_ones_own_cannot_be_made_again_from_its_name(tmp_path):
    with pytest.raises(ValueError, match=r"model: expected a model of cr.create_model, got Linear; .*save_weights"):
        cr.save_model(torch.nn.Linear(2, 3), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", ["28", 28.0, (8, 8, 8), (8, 0)])
def test_an_image_size_that_is_none_is_named(size):
    with pytest.raises(ValueError, match=r"image_size: expected a side or \(height, width\), got"):
        cr.create_model("capsnet_small", image_size=size)


def test_an_argument_that_a_model_has_not_is_answered_with_the_nearest():
    with pytest.raises(TypeError, match=r"CapsNet: got an unexpected .*'imagesize'; did you mean 'image_size'\?"):
        cr.create_model("capsnet_small", imagesize=8)


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
    "arguments", [{"num_classes": 100_000_000}, {"channels": 10**9}, {"decoder": [10**8, 10**8]}, {"channels": 10**30}]
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


@pytest.mark.parametrize("change", ["folded", "dropout"])
def test_layers_that_could_not_be_made_again_are_not_saved(change, tmp_path):
    """A folder without them would not load, or would load as another network."""
    model = cr.create_model("capsnet_small", image_size=8)
    if change == "folded":
        model, said = cr.inference.fold(model, "uniform"), "got one without 'class_capsules.routing'; .*export"
    else:
        model.convolution = torch.nn.Sequential(model.convolution, torch.nn.Dropout())
        said = "got one with 'convolution.0', 'convolution.1' besides"
    with pytest.raises(ValueError, match=f"model: expected one as 'capsnet_small' makes it, {said}"):
        cr.save_model(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


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
