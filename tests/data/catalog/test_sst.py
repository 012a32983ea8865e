from dataclasses import replace
from pathlib import Path

import pytest

from capsroute.data import DataError, dataset_info, load, registry

TREES = {
    "train.txt": "(3 (2 It) (4 works))\n(1 (2 It) (0 fails))\n(2 (2 So) (2 what))\n",
    "dev.txt": "(4 (2 It) (4 works))\n",
    "test.txt": "(0 no)\n(2 maybe)\n",
}
REAL = Path(__file__).parents[4] / "shared" / "data" / "sst"


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, text in TREES.items():
        (tmp_path / name).write_text(text)
    info = replace(dataset_info("sst"), sizes={"train": 3, "validation": 1, "test": 2})
    monkeypatch.setitem(registry._REGISTRY, "sst", info)
    return tmp_path


def test_root_sentences_with_five_classes(root):
    train = load("sst", root=root)
    assert train.texts == ("It works", "It fails", "So what")
    assert train.labels.tolist() == [3, 1, 2]
    assert load("sst", "test", root=root).texts == ("no", "maybe")
    assert len(load("sst", "train+validation", root=root)) == 4


def test_two_classes_without_neutral_sentences(root):
    train = load("sst", root=root, classes=2)
    assert train.texts == ("It works", "It fails")
    assert train.labels.tolist() == [1, 0]
    assert train.classes == ("negative", "positive")


def test_all_unique_phrases_of_the_trees(root):
    train = load("sst", root=root, phrases=True)
    assert dict(zip(train.texts, train.labels.tolist())) == {
        "It works": 3,
        "It": 2,
        "works": 4,
        "It fails": 1,
        "fails": 0,
        "So what": 2,
        "So": 2,
        "what": 2,
    }
    assert load("sst", root=root, phrases=True, classes=2).texts == ("It works", "works", "It fails", "fails")


def test_a_file_that_ends_too_early(root):
    (root / "train.txt").write_text(TREES["train.txt"].splitlines(keepends=True)[0])
    for options in ({}, {"classes": 2}, {"phrases": True}):
        with pytest.raises(DataError, match=r"train.txt: expected 3 trees, found 1"):
            load("sst", root=root, **options)


def test_other_numbers_of_classes(root):
    with pytest.raises(ValueError, match="classes: expected 2 or 5, got 3"):
        load("sst", root=root, classes=3)


@pytest.mark.skipif(not REAL.is_dir(), reason="no copy of SST beside this checkout")
def test_the_real_treebank():
    assert [len(load("sst", split, root=REAL)) for split in ("validation", "test")] == [1101, 2210]
    lengths = [len(load("sst", split, root=REAL, classes=2)) for split in ("train", "validation", "test")]
    assert lengths == [6920, 872, 1821]
    assert load("sst", "test", root=REAL).texts[0] == "Effective but too-tepid biopic"
    phrases = load("sst", root=REAL, phrases=True)
    assert (len(phrases), len(set(phrases.texts))) == (159_274, 159_274)
