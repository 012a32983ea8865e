"""Heads without routing: pooling is what its name says, and padding is never seen."""

import pytest
import torch

import capsroute as cr
from capsroute.models.text_pooling import AttentionPooledText, MeanPooledText

NAMES = ("heinsen_sst_mean_pooling", "heinsen_sst_attention_pooling")


def small(name):
    torch.manual_seed(0)
    return cr.create_model(name, **cr.models.small_options(name)).eval()


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_in_the_padding_changes_nothing(name):
    model, hidden = small(name), torch.randn(2, 5, 3, 12)
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    scores = model(hidden, mask=mask).scores
    torch.testing.assert_close(scores[1:], model(hidden[1:, :2]).scores)
    hidden[1, 2:] = torch.nan
    torch.testing.assert_close(scores, model(hidden, mask=mask).scores)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_without_tokens_has_finite_scores(name):
    assert small(name)(torch.randn(1, 4, 3, 12), mask=torch.zeros(1, 4)).scores.isfinite().all()


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
