"""Heinsen's network for text, on precomputed hidden states."""

import pytest
import torch

import capsroute as cr
from capsroute.models.heinsen_text import AttentionPooledText, MeanPooledText
from tests.layers.filled import ROUTINGS
from tests.models.inputs import settled, small


def hidden(batch=2, tokens=5, seed=0):
    return torch.randn(batch, tokens, 3, 12, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name not in ("pooling", "fast")])
def test_padding_changes_nothing(routing):
    model = settled(small("heinsen_sst", routing=routing))
    padded = torch.cat([hidden(), torch.full((2, 4, 3, 12), 9.0)], 1)
    mask = torch.tensor([[1] * 5 + [0] * 4] * 2)
    torch.testing.assert_close(model(padded, mask=mask).scores, model(hidden()).scores, rtol=1e-4, atol=1e-5)


def test_sentences_of_different_lengths_share_a_batch():
    model = settled(small("heinsen_sst"))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    batch = model(hidden(), mask=mask).scores
    torch.testing.assert_close(batch[1:], model(hidden()[1:, :2]).scores, rtol=1e-4, atol=1e-5)


def test_a_sentence_without_tokens_is_finite():
    model = settled(small("heinsen_sst"))
    output = model(hidden(), mask=torch.zeros(2, 5))
    assert output.scores.isfinite().all()
    output.scores.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_children_are_tokens_by_depth():
    model = settled(small("heinsen_sst"))
    states = hidden(batch=1)
    children = [
        model.detect(states[0, token, depth] + model.depth_embedding[depth]) for token in range(5) for depth in range(3)
    ]
    routed = model.capsules(torch.stack(children)[None, :, None])
    torch.testing.assert_close(model(states).scores, routed.scores, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("norm_first", "kinds"), [(True, ["LayerNorm", "Linear", "SiLU"]), (False, ["Linear", "SiLU", "LayerNorm"])]
)
def test_the_order_is_the_papers_or_that_of_the_authors_code(norm_first, kinds):
    model = cr.create_model("heinsen_sst", norm_first=norm_first)
    assert [type(layer).__name__ for layer in model.detect] == kinds


def test_inputs_that_do_not_fit_are_named():
    model = small("heinsen_sst")
    with pytest.raises(ValueError, match=r"hidden: expected \[b,tokens,3,12\], got \[2, 5, 4, 12\]"):
        model(torch.zeros(2, 5, 4, 12))
    with pytest.raises(ValueError, match=r"mask: expected \[b,tokens\] = \[2, 5\], got \[2, 6\]"):
        model(hidden(), mask=torch.ones(2, 6))
    with pytest.raises(ValueError, match="pose: expected a vector pose"):
        small("heinsen_sst", pose=(2, 2))


def test_a_learned_score_decides_how_much_a_token_counts():
    model = settled(small("heinsen_sst", learned_scores=True))
    with torch.no_grad():
        model.scores.weight.zero_()
        model.scores.bias.fill_(100.0)
    plain = small("heinsen_sst")
    plain.load_state_dict({name: value for name, value in model.state_dict().items() if not name.startswith("scores.")})
    torch.testing.assert_close(model(hidden()).scores, plain.eval()(hidden()).scores, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        model.scores.bias.fill_(-100.0)
    assert not torch.allclose(model(hidden()).scores, plain(hidden()).scores, atol=1e-3)
    with pytest.raises(ValueError, match="learned_scores: routing 'dynamic' takes no scores"):
        small("heinsen_sst", learned_scores=True, routing="dynamic")


def test_a_soft_mask_counts_as_the_authors_count_it():
    """Their scores of the parts are log(mask / (1 - mask))."""
    torch.manual_seed(0)
    model = cr.models.HeinsenText(depth=2, width=6, num_classes=3, features=4, parts=5).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "beta" in name:
                parameter.normal_()
    hidden = torch.randn(2, 4, 2, 6, dtype=torch.float64)
    mask = torch.tensor([[1.0, 0.9, 0.3, 0.0], [1.0, 1.0, 0.5, 0.5]], dtype=torch.float64)
    scores = (mask / (1 - mask)).log().unsqueeze(2).expand(-1, -1, 2).flatten(1)
    poses = model.detect(hidden + model.depth_embedding).flatten(1, 2).unsqueeze(2)
    expected = model.capsules(poses, scores).scores
    torch.testing.assert_close(model(hidden, mask=mask).scores, expected, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(model(hidden, mask=mask.bool()).scores, expected, atol=1e-3)


NAMES = ("heinsen_sst_mean_pooling", "heinsen_sst_attention_pooling")
TEXTS = (*NAMES, "heinsen_sst", "vector_routing_head")


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_in_the_padding_changes_nothing(name):
    model, hidden = small(name), torch.randn(2, 5, 3, 12)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    scores = model(hidden, mask=mask).scores
    torch.testing.assert_close(scores[1:], model(hidden[1:, :2]).scores)
    hidden[1, 2:] = torch.nan
    torch.testing.assert_close(scores, model(hidden, mask=mask).scores)


@pytest.mark.parametrize("name", TEXTS)
def test_nan_in_the_padding_reaches_no_gradient(name):
    model, hidden = small(name), torch.randn(2, 5, 3, 12)
    hidden[1, 2:] = torch.nan
    hidden.requires_grad_()
    model(hidden, mask=torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])).scores.square().sum().backward()
    assert (hidden.grad[1, 2:] == 0).all()
    for tensor in (hidden, *model.parameters()):
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_a_text_without_tokens_has_finite_scores(name):
    assert small(name)(torch.randn(1, 4, 3, 12), mask=torch.zeros(1, 4)).scores.isfinite().all()


@pytest.mark.parametrize("name", TEXTS)
def test_long_texts_of_large_states_are_finite_in_float16(name):
    hidden = 20 * torch.randn(1, 500, 3, 12, generator=torch.Generator().manual_seed(0))
    hidden[..., 3] += 200  # as transformers have a few
    model = small(name)
    expected = model(hidden, mask=torch.ones(1, 500)).scores
    scores = model.half()(hidden.half(), mask=torch.ones(1, 500)).scores.float()
    torch.testing.assert_close(scores, expected, rtol=0.01, atol=0.01)


def test_the_mean_is_over_tokens_at_each_depth():
    model, hidden = small(NAMES[0]), torch.randn(1, 4, 3, 12)
    expected = model.layers(torch.stack([hidden[0, :, depth].mean(0) for depth in range(3)])[None])
    torch.testing.assert_close(model(hidden).scores, expected)


def test_equal_queries_weigh_all_states_equally():
    model = AttentionPooledText(depth=3, width=12, num_classes=2, features=8, heads=2)
    torch.nn.init.zeros_(model.queries.weight)
    hidden = torch.randn(1, 4, 3, 12)
    mean = model.detect(hidden).flatten(1, 2).mean(1)
    torch.testing.assert_close(model(hidden).scores, model.classifier(torch.cat([mean, mean], 1)))


@pytest.mark.parametrize("norm_first", [True, False])
def test_features_are_made_in_the_order_of_the_routing_head(norm_first):
    heads = [cr.create_model(name, norm_first=norm_first) for name in ("heinsen_sst", NAMES[1])]
    routed, pooled = (
        [(type(layer), getattr(layer, "normalized_shape", None)) for layer in head.detect] for head in heads
    )
    assert pooled == routed
    assert (pooled[0][0] is torch.nn.LayerNorm) == norm_first


def test_sizes_beside_the_routing_head():
    sizes = {"depth": 7, "width": 384, "num_classes": 5}
    count = {
        model: sum(p.numel() for p in made.parameters())
        for model, made in (
            ("mean", MeanPooledText(**sizes)),
            ("attention", AttentionPooledText(**sizes)),
            ("routing", cr.create_model("heinsen_sst", **sizes)),
        )
    }
    assert count == {"mean": 14_213, "attention": 37_341, "routing": 39_104}


@pytest.mark.parametrize("kind", [MeanPooledText, AttentionPooledText])
def test_a_token_that_counts_half_twice_counts_once(kind):
    torch.manual_seed(0)
    model = kind(depth=2, width=6, num_classes=3).double().eval()
    hidden = torch.randn(1, 3, 2, 6, dtype=torch.float64)
    twice = hidden[:, [0, 1, 2, 2]]
    mask = torch.tensor([[1.0, 1.0, 0.5, 0.5]], dtype=torch.float64)
    torch.testing.assert_close(model(twice, mask=mask).scores, model(hidden).scores)
