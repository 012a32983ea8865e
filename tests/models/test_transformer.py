"""A transformer under Heinsen's network for text: tiny, random, and not from the network."""

import pytest
import torch

import capsroute as cr

transformers = pytest.importorskip("transformers", reason="transformers is in the extra `text`")

IDS = torch.tensor([[5, 6, 7, 8], [9, 10, 1, 1]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])


def gpt2():
    config = transformers.GPT2Config(n_layer=2, n_embd=16, n_head=2, vocab_size=20, n_positions=16)
    return transformers.GPT2Model(config)


def bert():
    config = transformers.BertConfig(
        num_hidden_layers=3, hidden_size=16, num_attention_heads=2, intermediate_size=8, vocab_size=20
    )
    return transformers.BertModel(config)


def classifier(make=gpt2, **options):
    torch.manual_seed(0)
    model = cr.models.TransformerClassifier(make(), num_classes=5, **{"features": 8, "parts": 6, **options})
    with torch.no_grad():
        for layer in model.head.routed_layers().values():
            layer.routing.beta_use.normal_()
    return model


@pytest.mark.parametrize(("make", "depth"), [(gpt2, 3), (bert, 4)])
def test_the_head_fits_the_transformer_and_sees_its_hidden_states(make, depth):
    model = classifier(make).eval()
    assert model.head.input_shape == (None, depth, 16)
    output = model(IDS, MASK, return_coefficients=True)
    states = model.transformer(input_ids=IDS, attention_mask=MASK, output_hidden_states=True).hidden_states
    expected = model.head(torch.stack(states, 2), mask=MASK)
    assert torch.equal(output.scores, expected.scores)
    assert output.coefficients["capsules.layers.0"].shape == (2, 4 * depth, 6)


def test_padding_changes_nothing():
    model = classifier().eval()
    torch.testing.assert_close(model(IDS, MASK).scores[1:], model(IDS[1:, :2]).scores, rtol=1e-4, atol=1e-5)


def test_a_frozen_transformer_neither_learns_nor_drops_out():
    model = classifier(frozen=True).train()
    assert torch.equal(model(IDS).scores, model(IDS).scores)
    model(IDS).scores.sum().backward()
    assert all(parameter.grad is None for parameter in model.transformer.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())
    assert model.head.training
    assert not model.transformer.training


def test_a_transformer_that_is_not_frozen_learns():
    model = classifier(frozen=False).train()
    assert model.transformer.training
    model(IDS).scores.sum().backward()
    assert model.transformer.wte.weight.grad.abs().sum() > 0


def test_a_name_is_a_pretrained_model(monkeypatch):
    monkeypatch.setattr(
        transformers.AutoModel, "from_pretrained", lambda name, use_safetensors: {"tiny-gpt2": gpt2()}[name]
    )
    assert cr.models.TransformerClassifier("tiny-gpt2", num_classes=2)(IDS).scores.shape == (2, 2)


def test_the_head_is_saved_by_itself(tmp_path):
    model = classifier().eval()
    cr.save_model(model.head, tmp_path)
    hidden = torch.randn(2, 4, 3, 16)
    assert torch.equal(cr.load_model(tmp_path)(hidden).scores, model.head(hidden).scores)
