"""Models by name."""

import pytest
import torch

import capsroute as cr


def test_names_are_listed_in_order_and_by_pattern():
    names = cr.list_models()
    assert names == sorted(names)
    assert {"capsnet", "capsnet_max_min", "tsai_resnet_cifar10", "heinsen_sst", "zhao_huang_resnet20"} <= set(names)
    assert cr.list_models("capsnet_max*") == ["capsnet_max_min", "capsnet_max_min_cifar10"]
    assert cr.list_models("nothing*") == []


@pytest.fixture
def mine():
    @cr.register_model(small={"image_size": 9})
    def model_of_mine(**options):
        """Mine."""
        return cr.models.CapsNet(**{"kernel_size": 3, "primary_kernel": 3, "channels": 4, **options})

    yield "model_of_mine"
    cr.models.unregister_model("model_of_mine")


def test_a_registered_model_is_made_listed_summarised_saved_and_loaded(mine, tmp_path):
    assert mine in cr.list_models()
    summary = cr.models.summarise(mine, num_classes=3)
    assert (summary.description, summary.num_classes) == ("Mine.", 3)
    model = cr.create_model(mine, **cr.models.small_options(mine))
    assert (model.name, model.input_shape) == (mine, (1, 9, 9))
    cr.save_model(model, tmp_path)
    assert cr.load_model(tmp_path).name == mine


def test_overrides_win_over_the_defaults_of_an_entry():
    assert cr.create_model("capsnet_max_min", routing="dynamic", image_size=20).class_capsules.routing.name == "dynamic"


def test_a_name_of_another_module_is_not_taken_over():
    def capsnet(**options):
        return cr.models.CapsNet(**options)

    with pytest.raises(ValueError, match=r"the name 'capsnet' is taken by capsroute\.models\.sabour"):
        cr.register_model(capsnet)


def test_an_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"name: expected one of affcapsnet, capsnet, .*, got 'capsent'"):
        cr.create_model("capsent")


def test_an_unknown_argument_is_named():
    with pytest.raises(TypeError, match="chanels"):
        cr.create_model("capsnet", chanels=3)


def test_weights_come_from_a_folder(tmp_path):
    torch.manual_seed(0)
    saved = cr.create_model("capsnet_small", image_size=8)
    cr.save_model(saved, tmp_path)
    fresh = cr.create_model("capsnet_small", pretrained=tmp_path, image_size=8)
    assert torch.equal(fresh.class_capsules.W, saved.class_capsules.W)
    with pytest.raises(ValueError, match="no weights of 'capsnet' are published"):
        cr.create_model("capsnet", pretrained=True)
    with pytest.raises(ValueError, match="do not fit"):
        cr.create_model("capsnet_small", pretrained=tmp_path, image_size=12)


def test_a_summary_makes_no_weights():
    # 255 million parameters would be a gigabyte.
    assert cr.models.summarise("tsai_multimnist_vector", num_classes=100).parameters == 254_814_657
