import copy

import pytest
import torch

import capsroute as cr
from tests.inference.networks import CLASSES, OneLayer, TwoLayers, make_batches


def margin_model(model=None):
    model = model or OneLayer()
    model.default_loss = "margin"
    return model


class NormedModel(OneLayer):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(1)
        self.default_loss = "margin"

    def forward(self, images, labels=None, return_coefficients=False):
        return super().forward(self.norm(images), labels, return_coefficients)


def changed(before, after):
    """Names of parameters and buffers that differ."""
    old, new = before.state_dict(), after.state_dict()
    return {name for name in old if name in new and not torch.equal(old[name], new[name])}


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ("coefficients", {"capsules.routing.coefficients"}),
        ("transforms", {"capsules.W"}),
        ("coefficients+transforms", {"capsules.routing.coefficients", "capsules.W"}),
        ("network", {"capsules.W", "primary.poses.weight", "primary.poses.bias"}),
        ("all", {"capsules.routing.coefficients", "capsules.W", "primary.poses.weight", "primary.poses.bias"}),
    ],
)
def test_learns_what_it_says_and_nothing_else(learn, expected):
    torch.manual_seed(0)
    model = margin_model()
    start = cr.inference.with_coefficients(model, "uniform")
    original = copy.deepcopy(model)
    fast = cr.inference.finetune(model, "uniform", make_batches(), learn=learn, epochs=1)
    assert changed(start, fast) == expected
    assert not changed(original, model)
    assert all(parameter.requires_grad for parameter in fast.parameters())
    assert {name for name, parameter in fast.named_parameters() if parameter.grad is not None} == expected


def test_learning_the_coefficients_lowers_the_loss():
    torch.manual_seed(3)
    losses = []
    cr.inference.finetune(
        margin_model(),
        "uniform",
        make_batches(),
        epochs=20,
        coefficient_rate=0.05,
        report=lambda epoch, loss: losses.append(loss),
    )
    assert len(losses) == 20
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("loss", ["margin", "spread", "cross_entropy", "binary_cross_entropy"])
def test_every_loss_of_the_models(loss):
    model, reported, scored = margin_model(), [], []
    model.default_loss = loss
    cr.inference.finetune(
        model,
        "uniform",
        make_batches(),
        epochs=1,
        coefficient_rate=0.0,
        sharpness=None,
        report=lambda epoch, mean: reported.append(mean),
    )
    uniform = cr.inference.with_coefficients(model, "uniform")
    for images, labels in make_batches():
        scores, hot = uniform(images).scores, torch.nn.functional.one_hot(labels, CLASSES)
        wrong, right = scores[hot == 0].view(len(labels), -1), scores[hot == 1][:, None]
        scored.append(
            {
                "margin": ((0.9 - right).clamp_min(0) ** 2).sum(1) + 0.5 * ((wrong - 0.1).clamp_min(0) ** 2).sum(1),
                "spread": (0.9 - (right - wrong)).clamp_min(0).square().sum(1),
                "cross_entropy": scores.logsumexp(1) - right[:, 0],
                "binary_cross_entropy": (scores.exp().log1p() - hot * scores).mean(1),
            }[loss].mean()
        )
    assert reported == [pytest.approx(torch.stack(scored).mean().item(), rel=1e-5)]


@pytest.mark.parametrize(
    ("learn", "moves"), [("coefficients", False), ("coefficients+transforms", False), ("all", True)]
)
def test_batch_norm_statistics_move_only_when_the_whole_network_learns(learn, moves):
    fast = cr.inference.finetune(NormedModel(), "uniform", make_batches(), learn=learn, epochs=1)
    assert (int(fast.norm.num_batches_tracked) > 0) is moves


def test_rates_rise_fall_to_zero_and_follow_the_size_of_the_coefficients(monkeypatch):
    rates = []
    step = torch.optim.Adam.step
    monkeypatch.setattr(
        torch.optim.Adam, "step", lambda self: (rates.append([g["lr"] for g in self.param_groups]), step(self))
    )
    cr.inference.finetune(
        margin_model(),
        {"capsules": torch.full((18, 4), 0.5)},
        make_batches(batch=1),
        learn="coefficients+transforms",
        epochs=2,
        learning_rate=1e-3,
        coefficient_rate=0.1,
    )
    shares = [rate / 1e-3 for _, rate in rates]
    assert len(shares) == 80
    assert shares[0] == pytest.approx(0.1)
    assert max(shares) == pytest.approx(1.0)
    assert shares[-1] < 0.001
    assert [rate / 0.05 for rate, _ in rates] == pytest.approx(shares)


def test_sharpness_is_cross_entropy_of_lengths_and_none_the_models_own_loss():
    model, losses = margin_model(), []
    [(images, labels)] = batches = make_batches(batch=40)
    for sharpness in (20.0, None):
        cr.inference.finetune(
            model, "uniform", batches, epochs=1, sharpness=sharpness, report=lambda epoch, loss: losses.append(loss)
        )
    scores = cr.inference.with_coefficients(model, "uniform")(images).scores
    expected = [torch.nn.functional.cross_entropy(20 * scores, labels), cr.losses.margin(scores, labels)]
    assert losses == pytest.approx([loss.item() for loss in expected], rel=1e-5)


def test_dynamic_then_fast_gives_the_network_its_own_master_coefficients():
    torch.manual_seed(0)
    model = margin_model(TwoLayers())
    before = copy.deepcopy(model)
    fast = cr.inference.dynamic_then_fast(
        model, make_batches(size=7), dynamic_epochs=1, fast_epochs=1, layers=["stack.layers.1"]
    )
    assert [layer.routing.name for layer in fast.stack.layers] == ["max_min", "fast"]
    assert "stack.layers.1.W" in changed(before, model)
    master = cr.inference.accumulate(model, make_batches(size=7), layers=["stack.layers.1"])
    given = cr.inference.given_coefficients(fast)
    torch.testing.assert_close(given["stack.layers.1"], master["stack.layers.1"], atol=1e-6, rtol=0)


def test_refuses_other_words():
    with pytest.raises(ValueError, match="learn: expected one of coefficients, "):
        cr.inference.finetune(margin_model(), "uniform", make_batches(), learn="everything")


@pytest.mark.parametrize(("name", "bad"), [("epochs", -1), ("learning_rate", -0.1), ("coefficient_rate", float("nan"))])
def test_refuses_numbers_that_cannot_be_learned_with(name, bad):
    with pytest.raises(ValueError, match=f"{name}: expected a .*, got {bad}"):
        cr.inference.finetune(margin_model(), "uniform", make_batches(), **{name: bad})


def test_batches_that_are_gone_after_one_epoch_are_refused():
    """Later epochs would learn nothing, and nobody would say so."""
    with pytest.raises(ValueError, match=r"batches: .* 3 times, got a one-way iterator"):
        cr.inference.finetune(margin_model(), "uniform", iter(make_batches()), epochs=3)
    with pytest.raises(ValueError, match=r"batches: .* 3 times, got a one-way iterator"):
        cr.inference.dynamic_then_fast(margin_model(), iter(make_batches()), dynamic_epochs=1, fast_epochs=1)
    cr.inference.finetune(margin_model(), "uniform", iter(make_batches()), epochs=1)
    with pytest.raises(ValueError, match="batches: expected at least one, got none"):
        cr.inference.finetune(margin_model(), "uniform", [])


@pytest.mark.parametrize("sharpness", [20.0, None])
@pytest.mark.parametrize("label", [-100, -1, CLASSES])
def test_labels_that_are_no_class_are_refused(label, sharpness):
    """A cross-entropy passes over -100 without a word."""
    images, labels = make_batches()[0]
    labels = labels.clone().index_fill_(0, torch.tensor([0]), label)
    with pytest.raises(ValueError, match=rf"labels: expected .*{label}"):
        cr.inference.finetune(margin_model(), "uniform", [(images, labels)], epochs=1, sharpness=sharpness)


def test_stops_when_the_loss_explodes(monkeypatch):
    monkeypatch.setattr(cr.losses, "margin", lambda scores, labels: scores.sum() * torch.inf)
    with pytest.raises(ValueError, match="learning_rate: the loss is no longer finite"):
        cr.inference.finetune(margin_model(), "uniform", make_batches(), sharpness=None)
