"""Numbers of parameters: exact, and rounded as the papers print them."""

import re
from pathlib import Path

import pytest
import torch

import capsroute as cr
from capsroute.models.registry import registered

# name, overrides, exact count, the paper's figure in millions (None: the paper prints the exact one, or none)
COUNTS = [
    ("capsnet", {}, 8_215_568, 8.2),
    ("capsnet", {"decoder": None}, 6_804_224, 6.8),
    ("capsnet_max_min", {}, 8_215_568, None),
    ("capsnet_max_min_cifar10", {}, 8_405_440, None),
    ("tsai_simple_cifar10", {}, 561_297, 0.56),
    ("tsai_simple_cifar100", {}, 1_462_989, 1.46),
    ("tsai_resnet_cifar10", {}, 1_828_817, 1.83),
    ("tsai_resnet_cifar100", {}, 2_799_629, 2.80),
    ("tsai_dynamic_simple", {}, 7_992_576, 7.99),
    ("tsai_dynamic_simple", {"num_classes": 100}, 31_585_536, 31.59),
    ("tsai_dynamic_resnet", {}, 12_451_136, 12.45),
    ("tsai_dynamic_resnet", {"num_classes": 100}, 36_044_096, 36.04),
    ("tsai_em_simple", {}, 453_044, 0.45),
    ("tsai_em_simple", {"num_classes": 100}, 499_304, 0.50),
    ("tsai_em_resnet", {}, 1_710_580, 1.71),
    ("tsai_em_resnet", {"num_classes": 100}, 1_756_840, 1.76),
    ("tsai_multimnist_matrix", {}, 9_963_969, 9.96),
    ("tsai_multimnist_vector", {}, 42_478_017, 42.48),
    ("tsai_multimnist_vector", {"routing": "dynamic"}, 42_478_592, 42.48),
    ("tsai_multimnist_cnn", {}, 19_553_162, 19.55),
    ("tsai_multimnist_cnn", {"pool": False}, 42_490_762, 42.49),
    ("tsai_cnn", {}, 18_919_434, 18.92),
    ("tsai_cnn", {"num_classes": 100}, 19_011_684, 19.01),
    ("tsai_resnet18", {}, 11_173_962, 11.17),
    ("tsai_resnet18", {"num_classes": 100}, 11_220_132, 11.22),
    ("zhao_huang_resnet20", {}, 269_722, 0.27),
    ("zhao_huang_resnet32", {}, 464_154, 0.46),
    ("zhao_huang_resnet44", {}, 658_586, 0.66),
    ("zhao_huang_resnet56", {}, 853_018, 0.85),
    ("zhao_huang_capsnet_affnist", {}, 2_521_648, 2.5),
    ("zhao_huang_capsnet_multimnist", {}, 2_210_048, 2.2),
    ("heinsen_smallnorb", {}, 271_688, None),
    ("heinsen_sst", {}, 142_912, None),  # "between 141,000 and 143,000"
    ("heinsen_sst", {"num_classes": 2}, 141_376, None),
    ("efficient_capsnet_mnist", {}, 161_824, None),
    ("efficient_capsnet_smallnorb", {}, 151_664, None),
    ("efficient_capsnet_multimnist", {}, 154_656, None),
    ("self_routing_resnet20", {}, 931_664, None),
    ("self_routing_resnet20_two", {}, 3_187_536, None),
    ("vb_capsnet", {}, 68_714, None),
    ("vector_routing_head", {}, 5_068_422, None),
    ("vector_routing_head_minilm", {}, 915_078, None),
]


@pytest.mark.parametrize(("name", "overrides", "count", "millions"), COUNTS)
def test_the_count_is_that_of_the_paper(name, overrides, count, millions):
    assert cr.models.summarise(name, **overrides).parameters == count
    if millions is not None:
        digits = len(str(millions).split(".")[1]) if millions not in (2.80, 0.50) else 2
        assert round(count / 1e6, digits) == millions


@pytest.mark.parametrize("pooling", ["average", "max"])
def test_routing_pooling_adds_no_parameter(pooling):
    for name in ("zhao_huang_conv", "zhao_huang_resnet20"):
        routed, plain = cr.models.summarise(name), cr.models.summarise(name, pooling=pooling)
        assert routed.parameters == plain.parameters


def test_ablations_b_and_c_differ_by_nothing_and_by_activations():
    plain = cr.models.summarise("tsai_simple_cifar10").parameters
    inverted = cr.models.tsai.INVERTED_ATTENTION
    assert cr.models.summarise("tsai_simple_cifar10", schedule="sequential").parameters == plain
    without_norm = cr.models.summarise("tsai_simple_cifar10", routing={**inverted, "norm": "none"}).parameters
    assert plain - without_norm == 4 * 2 * 16
    activated = cr.models.summarise("tsai_simple_cifar10", routing={**inverted, "activations": True}).parameters
    assert activated - plain == 32 * 256 + 32 + 2 * (32 + 32 + 10)


def test_the_page_of_models_has_every_model_with_its_count():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
    ours = [name for name in cr.list_models() if registered(name).__module__.startswith("capsroute.")]
    with torch.device("meta"):
        counts = {name: sum(p.numel() for p in cr.create_model(name).parameters()) for name in ours}
    assert dict(re.findall(r"^\| `(\w+)` \| ([\d,]+) \|", page, re.M)) == {name: f"{n:,}" for name, n in counts.items()}
