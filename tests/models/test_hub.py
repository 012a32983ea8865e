"""Models on the Hugging Face Hub: through its mixin, offline."""

import socket

import pytest
import torch

import capsroute as cr

hub = pytest.importorskip("huggingface_hub", reason="huggingface_hub is in the extra `hub`")


@pytest.fixture
def model():
    torch.manual_seed(0)
    return cr.create_model("capsnet_small", image_size=8, num_classes=3).eval()


@pytest.fixture
def offline(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("offline")
def test_a_local_folder_needs_no_network(model, tmp_path):
    cr.save_model(model, tmp_path)
    again = cr.models.CapsNet.from_pretrained(tmp_path)
    image = torch.rand(2, 1, 8, 8)
    assert torch.equal(again(image).scores, model(image).scores)
    assert type(cr.models.CapsuleModel.from_pretrained(str(tmp_path))) is cr.models.CapsNet


@pytest.mark.usefixtures("offline")
def test_what_is_pushed_is_the_folder_and_a_card(model, tmp_path, monkeypatch):
    pushed = {}

    def create_repo(self, repo_id, **options):
        return hub.RepoUrl(f"https://huggingface.co/{repo_id}")

    def upload_folder(self, *, repo_id, folder_path, **options):
        pushed.update({path.name: path.read_bytes() for path in folder_path.iterdir()}, repo=repo_id)
        return "commit"

    monkeypatch.setattr(hub.HfApi, "create_repo", create_repo)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    assert model.push_to_hub("someone/capsnet") == "commit"
    assert pushed.pop("repo") == "someone/capsnet"
    assert set(pushed) == {"config.json", "model.safetensors", "README.md"}
    assert b"library_name: capsroute" in pushed["README.md"]
    assert b'cr.load_model("someone/capsnet")' in pushed["README.md"]
    for name, content in pushed.items():
        (tmp_path / name).write_bytes(content)
    assert torch.equal(cr.load_model(tmp_path).class_capsules.W, model.class_capsules.W)


@pytest.mark.usefixtures("offline")
def test_what_is_pulled_is_two_files_and_no_code(model, tmp_path, monkeypatch):
    cr.save_model(model, tmp_path)
    asked = {}

    def snapshot_download(repo_id, **options):
        asked.update(options, repo=repo_id)
        return str(tmp_path)

    monkeypatch.setattr("capsroute.models.hub.snapshot_download", snapshot_download)
    monkeypatch.setattr("huggingface_hub.hub_mixin.hf_hub_download", lambda **options: str(tmp_path / "config.json"))
    again = cr.models.CapsNet.from_pretrained("someone/capsnet", revision="v1")
    assert torch.equal(again.class_capsules.W, model.class_capsules.W)
    assert (asked["repo"], asked["revision"]) == ("someone/capsnet", "v1")
    assert asked["allow_patterns"] == ["config.json", "model.safetensors"]


def test_a_model_of_another_class_is_refused(model, tmp_path):
    cr.save_model(model, tmp_path)
    with pytest.raises(ValueError, match="name: expected a saved ConvCapsNet, found a CapsNet"):
        cr.models.ConvCapsNet.from_pretrained(tmp_path)
