"""Routing on top of any backbone."""

import pytest
import torch
from torch import nn

import capsroute as cr
from tests.layers.filled import ROUTINGS

TOKENS = torch.randn(2, 20, 8, generator=torch.Generator().manual_seed(0))


def head_of(**options):
    torch.manual_seed(0)
    head = cr.models.RoutingHead(8, 3, **{"capsules": 2, "pose": (2, 2), **options})
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if "beta" in name:
                parameter.normal_()
    return head


@pytest.mark.parametrize("parts", [None, 5])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing_but_one_runs_on_maps_and_on_tokens(routing, parts):
    if routing == "fast":
        with pytest.raises(ValueError, match="the number of children must be fixed"):
            head_of(routing=routing, parts=parts)
        return
    head = head_of(routing=routing, parts=parts)
    as_map = TOKENS.mT.unflatten(2, (4, 5))
    from_map, from_tokens = head(as_map, return_coefficients=True), head(TOKENS)
    torch.testing.assert_close(from_map.scores, from_tokens.scores)
    assert from_map.scores.shape == (2, 3)
    assert from_map.coefficients["capsules.layers.0"].shape == (2, 40, 5 if parts else 3)
    from_map.scores.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("routing", [name for name in ROUTINGS if name != "fast"])
def test_padding_changes_nothing(routing):
    head = head_of(routing=routing)
    mask = torch.tensor([[1] * 13 + [0] * 7] * 2)
    torch.testing.assert_close(head(TOKENS, mask).scores, head(TOKENS[:, :13]).scores, rtol=1e-4, atol=1e-5)


def test_it_goes_on_a_backbone_of_ones_own():
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), head_of())
    for size in (9, 16):
        assert model(torch.rand(2, 3, size, size)).scores.shape == (2, 3)


def test_features_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match=r"features: expected \[b,8,h,w\] or \[b,n,8\], got \[2, 7, 4, 4\]"):
        head_of()(torch.zeros(2, 7, 4, 4))


POOLINGS = ["mean", "cls", "attention", "simpool", "efficient_probing", "latent_attention", "slots"]
READ_OUTS = [{"pooling": name} for name in POOLINGS] + [
    {"pooling": {"name": "efficient_probing", "queries": 4}},
    {"routing": "vector", "parts": 5},
    {"routing": {"name": "vector", "iterations": 3}, "parts": 5},
]
ROUTED = [{"routing": name} for name in ROUTINGS if name != "fast"]


def ident(options):
    return next(iter(options.values())) if isinstance(next(iter(options.values())), str) else "options"


@pytest.mark.parametrize("options", READ_OUTS, ids=ident)
def test_every_read_out_runs_on_maps_and_on_tokens(options):
    head = head_of(**options)
    from_map, from_tokens = head(TOKENS.mT.unflatten(2, (4, 5)), return_coefficients=True), head(TOKENS)
    torch.testing.assert_close(from_map.scores, from_tokens.scores)
    assert from_map.scores.shape == (2, 3)
    assert from_tokens.coefficients is None
    assert next(iter(from_map.coefficients.values())).shape[:2] == (2, 20)
    from_map.scores.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("options", [*READ_OUTS, *ROUTED], ids=ident)
def test_one_token_gives_finite_scores_and_gradients(options):
    head = head_of(**options)
    scores = head(TOKENS[:, :1]).scores
    assert scores.isfinite().all()
    scores.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("options", READ_OUTS, ids=ident)
def test_a_read_out_in_float64_computes_in_float64(options):
    head = head_of(depths=3, **options).double()
    tokens = torch.randn(2, 4, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    assert torch.autograd.gradcheck(lambda tokens: head(tokens).scores, tokens, fast_mode=True)


@pytest.mark.parametrize("options", READ_OUTS, ids=ident)
def test_padding_of_a_read_out_changes_nothing_whatever_stands_in_it(options):
    head = head_of(**options)
    mask = torch.tensor([[1] * 13 + [0] * 7] * 2)
    spoilt = TOKENS.clone()
    spoilt[:, 13:] = torch.nan
    padded = head(spoilt, mask.bool(), return_coefficients=True)
    torch.testing.assert_close(padded.scores, head(TOKENS[:, :13]).scores, rtol=1e-4, atol=1e-5)
    assert (next(iter(padded.coefficients.values()))[:, 13:] == 0).all()


@pytest.mark.parametrize("options", [*READ_OUTS, *ROUTED], ids=ident)
def test_a_mask_that_hides_every_token_gives_finite_scores_and_gradients(options):
    head = head_of(**options)
    mask = torch.tensor([[True] * 20, [False] * 20])
    scores = head(TOKENS, mask).scores
    assert scores.isfinite().all()
    scores.square().sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("options", [*READ_OUTS, {"routing": "heinsen"}, {"routing": "self_attention"}], ids=ident)
def test_tokens_at_every_depth_as_a_tensor_a_list_or_an_encoders_output(options):
    head = head_of(depths=3, **options)
    hidden = torch.randn(2, 6, 3, 8, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(6).expand(2, -1) < 4

    class Output:
        hidden_states = tuple(hidden.unbind(2))
        last_hidden_state = hidden[:, :, -1]

    scores = head(hidden, mask).scores
    torch.testing.assert_close(head(list(hidden.unbind(2)), mask).scores, scores)
    torch.testing.assert_close(head(Output(), mask).scores, scores)
    torch.testing.assert_close(head(hidden[:, :4]).scores, scores, rtol=1e-4, atol=1e-5)
    last = head_of(**options)
    torch.testing.assert_close(last(Output()).scores, last(hidden[:, :, -1]).scores)


# Of a single token LayerNorm undoes the share.
@pytest.mark.parametrize("options", [each for each in READ_OUTS if each != {"pooling": "cls"}], ids=ident)
def test_a_soft_mask_is_not_a_bool(options):
    head = head_of(**options)
    masks = torch.ones(3, 2, 20)
    masks[:, :, 0] = torch.tensor([[1.0], [0.01], [0.0]])
    whole, hundredth, none = (head(TOKENS, mask).scores for mask in masks)
    assert (hundredth - none).abs().max() < 0.3 * (whole - none).abs().max()


def test_the_mean_is_the_mean_and_cls_the_first_token():
    for name, expected in (("mean", TOKENS.mean(1)), ("cls", TOKENS[:, 0])):
        head = head_of(pooling=name)
        torch.testing.assert_close(head(TOKENS).scores, head.classifier(head.norm(expected)))


def test_efficient_probing_looks_at_raw_tokens():
    pool = head_of(pooling={"name": "efficient_probing", "queries": 4}).pool
    pooled, weights = pool(TOKENS)
    for sample in range(2):
        for query in range(4):
            logits = TOKENS[sample] @ pool.queries[query] / 8**0.5
            values = TOKENS[sample] @ pool.values.weight[2 * query : 2 * query + 2].T
            values = values + pool.values.bias[2 * query : 2 * query + 2]
            expected = logits.softmax(0) @ values
            torch.testing.assert_close(pooled[sample, 2 * query : 2 * query + 2], expected)
    assert weights.shape == (2, 20, 4)


def test_credits_of_vector_routing_are_one_number_a_token_and_class():
    head = head_of(routing="vector", parts=5)
    assert head.credits(TOKENS).shape == (2, 20, 3)
    with pytest.raises(ValueError, match="only routing='vector' has credits"):
        head_of().credits(TOKENS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pooling": "median"}, "pooling: expected one of mean, cls, .*, got 'median'"),
        ({"pooling": {"name": "mean", "queries": 3}}, "pooling: 'mean' has options none, got queries"),
        ({"routing": {"name": "vector", "heads": 3}}, "routing: 'vector' has options iterations, got heads"),
        ({"capsules": 0}, "capsules: expected a whole number >= 1, got 0"),
        ({"parts": 2.5}, "parts: expected a whole number >= 1, got 2.5"),
        ({"pooling": "mean", "depths": 0}, "depths: expected a whole number >= 1, got 0"),
    ],
)
def test_what_a_head_is_not_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        head_of(**options)


def test_bad_input_is_refused_by_name():
    head = head_of(pooling="mean")
    with pytest.raises(ValueError, match=r"mask: expected \[b,n\] = \[2, 20\], got \[2, 19\]"):
        head(TOKENS, torch.ones(2, 19))
    with pytest.raises(ValueError, match="features: expected a tensor, or an output with last_hidden_state, got str"):
        head("tokens")
    with pytest.raises(ValueError, match=r"features: expected \[b,n,3,8\], or 3 of \[b,n,8\], got \[2, 20, 8\]"):
        head_of(pooling="mean", depths=3)(TOKENS)


@pytest.mark.parametrize("options", [{}, {"routing": "vector"}, {"pooling": "mean"}])
def test_features_of_another_type_are_refused_by_name_and_taken_under_autocast(options):
    head = head_of(**options)
    for other in (torch.float16, torch.float64, torch.int64):
        with pytest.raises(ValueError, match=f"features: expected torch.float32, as the head is, got {other}; cast"):
            head(TOKENS.to(other))
    with torch.autocast("cpu", torch.bfloat16):
        assert head(TOKENS.bfloat16()).scores.isfinite().all()


def test_it_is_found_among_the_layers_too():
    assert cr.layers.RoutingHead is cr.models.RoutingHead
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = cr.layers.nonsense


@pytest.mark.parametrize("routing", ["max_min", "self_attention"])
def test_a_fresh_head_of_many_tokens_is_not_saturated(routing):
    """Tokens of one text are alike: their votes add up. Gradients must be of the size that equal coefficients give."""
    generator = torch.Generator().manual_seed(0)
    tokens = 0.7 * torch.randn(64, generator=generator) + torch.randn(8, 60, 64, generator=generator)
    mask = torch.arange(60) < torch.tensor([60, 50, 40, 30, 60, 50, 40, 30])[:, None]

    def gradient(name):
        torch.manual_seed(0)
        head = cr.models.RoutingHead(64, 2, routing=name)
        head(tokens, mask=mask).scores.sum().backward()
        return head.poses.weight.grad.norm()

    assert gradient(routing) > gradient("uniform") / 2


class Scores(nn.Module):
    """A head as export takes it: tensors in, a tensor out."""

    def __init__(self, head):
        super().__init__()
        self.head = head

    def forward(self, tokens, mask):
        return self.head(tokens, mask=mask).scores


@pytest.mark.parametrize(
    "options",
    [{"routing": "dynamic"}, {"routing": "self_attention"}, {"routing": "vector"}, {"pooling": "slots"}],
    ids=ident,
)
def test_it_is_exported_for_any_number_of_sentences_and_tokens(options):
    head, there = Scores(head_of(**options)).eval(), torch.ones(2, 20, dtype=torch.bool)
    free = {0: torch.export.Dim("batch", max=2**31 - 1), 1: torch.export.Dim("tokens", min=2, max=2**31 - 1)}
    program = torch.export.export(head, (TOKENS, there), dynamic_shapes=(free, free)).module()
    tokens, mask = torch.randn(5, 33, 8), torch.rand(5, 33) < 0.7
    torch.testing.assert_close(program(tokens, mask), head(tokens, mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [*READ_OUTS, *ROUTED], ids=ident)
def test_a_mask_that_is_added_to_logits_is_refused_not_turned_round(options):
    added = torch.zeros(2, 20).index_fill(1, torch.arange(13, 20), -1e9)  # as inside of transformers: 0 is a token
    with pytest.raises(ValueError, match=r"mask: expected numbers in \[0, 1\], got -1000000000.0 to 0.0"):
        head_of(**options)(TOKENS, mask=added)


@pytest.mark.parametrize("options", [*READ_OUTS, *ROUTED], ids=ident)
def test_it_runs_in_half_precision(options):
    scores = head_of(**options).bfloat16()(TOKENS.bfloat16()).scores
    assert scores.isfinite().all()
