from dataclasses import replace

import pytest

from capsroute.data import DataError, dataset_info, list_datasets, load, register, registry
from capsroute.data.sources import PublicAddress


@pytest.mark.parametrize("info", list_datasets(), ids=lambda info: info.name)
def test_every_entry_is_complete(info):
    assert set(info.sizes) == {"train", "validation", "test"}
    assert min(info.sizes.values()) > 0
    # Scenes are judged by their masks: what is in all of them alike is one class.
    assert len(set(info.classes)) == len(info.classes) >= (1 if "with masks" in info.title else 2)
    assert info.licence
    assert info.origin
    if info.needs:
        assert dataset_info(info.needs).files
        assert not info.files


@pytest.mark.parametrize("info", [info for info in list_datasets() if info.sources], ids=lambda info: info.name)
def test_nothing_is_fetched_without_a_checksum(info):
    every_file_is_checked = all(file.checksum for file in info.files)
    for source in info.sources:
        downloads = source.downloads if isinstance(source, PublicAddress) else ()
        assert every_file_is_checked or (downloads and all(download.checksum for download in downloads))


def test_one_entry_adds_a_data_set(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    info = register(replace(dataset_info("digits"), name="my_digits"))
    assert info in list_datasets()
    assert len(load("my_digits", "test")) == 359
    with pytest.raises(ValueError, match="'my_digits' is registered already"):
        register(info)


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(ValueError, match=r"name: expected one of .* got 'minst'; did you mean 'mnist'"):
        load("minst")


def test_an_unknown_split_and_an_unknown_option_are_named():
    with pytest.raises(
        ValueError, match=r"split: expected one of train, validation, test, train.validation, got 'dev'"
    ):
        load("digits", "dev")
    with pytest.raises(ValueError, match="options: digits understands none, got 'size'"):
        load("digits", size=8)
    with pytest.raises(ValueError, match="options: multimnist understands count, seed, device, got 'n'"):
        load("multimnist", n=8)


def test_a_set_of_the_wrong_length_is_refused(tiny_mnist, monkeypatch):
    info = dataset_info("mnist")
    monkeypatch.setitem(registry._REGISTRY, "mnist", replace(info, sizes=info.sizes | {"test": 61}))
    with pytest.raises(DataError, match="expected 61 entries in mnist test, found 60"):
        load("mnist", "test")
    assert len(load("mnist", "train")) == 162


def test_is_here_looks_for_what_it_is_made_from(tiny_mnist):
    assert dataset_info("multimnist").is_here()
    assert dataset_info("toynorb").is_here()
    assert not dataset_info("multimnist").is_here(tiny_mnist / "elsewhere")
    assert not dataset_info("svhn").is_here()
