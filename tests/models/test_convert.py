"""State dicts in the published layouts give here what they give there."""

import pytest
import torch

import capsroute as cr
from capsroute.models.convert import load_published
from tests.models import published


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def inverted_attention(matrix: bool, backbone: str):
    theirs = published.InvertedAttention(matrix, backbone)
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    extra = {"base_channels": 6} if backbone == "resnet" else {}
    ours = cr.create_model(
        "tsai_simple_cifar100",
        image_size=14,
        num_classes=3,
        backbone={"name": backbone, "channels": 5, **extra},
        primary_capsules=2,
        pose=(2, 2) if matrix else 4,
        convolutions=((2, 3, 2),),
        hidden=(4,),
    )
    return theirs.eval(), ours


@pytest.mark.parametrize("backbone", ["simple", "resnet"])
@pytest.mark.parametrize("matrix", [True, False])
def test_inverted_attention(matrix, backbone):
    theirs, ours = inverted_attention(matrix, backbone)
    load_published(ours, theirs.state_dict())
    images = torch.rand(2, 3, 14, 14)
    with torch.no_grad():
        torch.testing.assert_close(ours(images).scores, theirs(images), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_the_training_script_is_a_state_dict_in_wraps(tmp_path):
    theirs, ours = inverted_attention(True, "simple")
    wrapped = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"net": wrapped, "acc": 95.1, "epoch": 349}, tmp_path / "ckpt.pth")
    load_published(ours, tmp_path / "ckpt.pth")
    images = torch.rand(1, 3, 14, 14)
    with torch.no_grad():
        torch.testing.assert_close(ours(images).scores, theirs(images), rtol=1e-4, atol=1e-5)


def test_heinsens_network_for_images():
    state, images = published.vision_state(), torch.rand(2, 2, 33, 33)
    ours = cr.create_model("heinsen_smallnorb", image_size=33, channels=4, parts=3, num_classes=2)
    load_published(ours, state)
    with torch.no_grad():
        scores = ours(images).scores
    torch.testing.assert_close(scores.double().numpy(), published.vision_scores(state, images), rtol=1e-3, atol=1e-4)


def test_heinsens_network_for_text():
    state, hidden = published.text_state(), torch.randn(2, 5, 2, 6)
    ours = cr.create_model("heinsen_sst", depth=2, width=6, features=4, parts=3, num_classes=2, norm_first=False)
    load_published(ours, state)
    with torch.no_grad():
        scores = ours(hidden).scores
    torch.testing.assert_close(scores.double().numpy(), published.text_scores(state, hidden), rtol=1e-3, atol=1e-4)


def test_a_file_of_tensors_is_read_and_anything_else_is_refused(tmp_path):
    ours = cr.create_model("heinsen_sst", depth=2, width=6, features=4, parts=3, num_classes=2, norm_first=False)
    torch.save(published.text_state(), tmp_path / "published.pt")
    assert load_published(ours, tmp_path / "published.pt") is ours
    assert not ours.training
    torch.save(published.Layer((2, 2), 2), tmp_path / "code.pt")
    with pytest.raises(ValueError, match=r"code\.pt: expected a file of tensors"):
        load_published(ours, tmp_path / "code.pt")
    torch.save([torch.zeros(2)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list\.pt: expected a state dict, found a list"):
        load_published(ours, tmp_path / "list.pt")


def test_what_does_not_fit_is_listed():
    ours = cr.create_model("heinsen_sst", depth=2, width=6, features=4, parts=3, num_classes=5, norm_first=False)
    state = published.text_state()
    state["routings.0.B_brk"] = torch.zeros(1, 1, 2)
    with pytest.raises(ValueError, match="do not fit") as error:
        load_published(ours, state)
    assert "capsules.layers.1.W is [3, 2, 2, 2], expected [3, 5, 2, 2]" in str(error.value)
    assert "unexpected routings.0.B_brk [1, 1, 2]" in str(error.value)


def test_a_model_without_published_weights_says_so():
    with pytest.raises(ValueError, match="model: expected one of HeinsenVision, HeinsenText, ConvCapsNet, got CapsNet"):
        load_published(cr.create_model("capsnet_small", image_size=8), {})
