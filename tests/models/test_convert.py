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
    load_published(ours, theirs.state_dict(), num_routing=2)
    images = torch.rand(2, 3, 14, 14)
    with torch.no_grad():
        torch.testing.assert_close(ours(images).scores, theirs(images), rtol=1e-4, atol=1e-5)


def test_a_checkpoint_of_the_training_script_is_a_state_dict_in_wraps(tmp_path):
    theirs, ours = inverted_attention(True, "simple")
    wrapped = {f"module.{name}": tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"net": wrapped, "acc": 95.1, "epoch": 349}, tmp_path / "ckpt.pth")
    with pytest.warns(UserWarning, match=r"ckpt\.pth does not say how often it routes .* the model routes 2 times"):
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
    kinds = "HeinsenVision, HeinsenText, ConvCapsNet, CapsNet"
    with pytest.raises(ValueError, match=f"model: expected one of {kinds}, got PooledCNN"):
        load_published(cr.create_model("zhao_huang_conv"), {})


@pytest.mark.parametrize(
    "wrap", [lambda net: {"net": net, "num_routing": 1}, lambda net: {"net": net, "args": {"num_routing": 1}}]
)
def test_a_checkpoint_that_says_how_often_it_routes_is_believed(wrap, tmp_path):
    theirs, ours = inverted_attention(True, "simple")
    _, once = inverted_attention(True, "simple")
    load_published(ours, wrap(theirs.state_dict()))
    load_published(once, theirs.state_dict(), num_routing=1)
    images = torch.rand(1, 3, 14, 14)
    assert torch.equal(ours(images).scores, once(images).scores)
    load_published(once, theirs.state_dict(), num_routing=2)
    assert (ours(images).scores - once(images).scores).abs().max() > 1e-3
    cr.save_model(ours, tmp_path)
    assert torch.equal(cr.load_model(tmp_path)(images).scores, ours(images).scores)


@pytest.mark.parametrize("weights", [{"net": 3}, {"conv1.weight": "a word"}, {3: torch.zeros(1)}])
def test_values_that_are_no_tensors_are_named(weights):
    with pytest.raises(ValueError, match="weights: expected"):
        load_published(cr.create_model("capsnet_small", image_size=8), weights)


def test_gram_ais_capsnet():
    """Children, votes and reconstructions are those of their modules; the repository names them so."""
    convolution = torch.nn.Conv2d(1, 16, 9)
    capsules = torch.nn.ModuleList([torch.nn.Conv2d(16, 4, 9, stride=2) for _ in range(8)])
    routes = torch.randn(10, 4 * 36, 8, 16)
    decoder = torch.nn.Sequential(
        torch.nn.Linear(160, 12), torch.nn.ReLU(), torch.nn.Linear(12, 20), torch.nn.ReLU(), torch.nn.Linear(20, 784)
    )
    state = {f"conv1.{name}": tensor for name, tensor in convolution.state_dict().items()}
    state |= {f"primary_capsules.capsules.{name}": tensor for name, tensor in capsules.state_dict().items()}
    state |= {"digit_capsules.route_weights": routes}
    state |= {f"decoder.{name}": tensor for name, tensor in decoder.state_dict().items()}
    ours = cr.create_model("capsnet", channels=16, primary_capsules=4, decoder=(12, 20))
    load_published(ours, state)
    images = torch.rand(2, 1, 28, 28)
    with torch.no_grad():
        features = convolution(images).relu()
        children = torch.cat([capsule(features).view(2, -1, 1) for capsule in capsules], -1)  # [b, i, k]
        norm = (children**2).sum(-1, keepdim=True)
        children = norm / (1 + norm) * children / norm.sqrt()
        found = cr.layers.flatten_positions(ours.primary_capsules(ours.forward_features(images)).poses).poses
        torch.testing.assert_close(found.squeeze(2), children, rtol=1e-5, atol=1e-6)
        priors = children[None, :, :, None, :] @ routes[:, None]  # [j, b, i, 1, o]
        votes = ours.class_capsules.votes(found).dense()
        torch.testing.assert_close(votes, priors.permute(1, 2, 0, 3, 4), rtol=1e-4, atol=1e-5)
        poses = torch.randn(2, 10, 1, 16)
        mask = torch.zeros(2, 10, 1)
        mask[0, 3], mask[1, 7] = 1, 1
        drawn = decoder((poses.squeeze(2) * mask).flatten(1)).sigmoid()
        torch.testing.assert_close(ours.decoder(poses, torch.tensor([3, 7])).flatten(1), drawn)
