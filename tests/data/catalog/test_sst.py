from dataclasses import replace
from pathlib import Path

import pytest

from capsroute.data import DataError, dataset_info, datasets, load
from capsroute.data.catalog.sst import decode_trees

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
    monkeypatch.setitem(datasets._REGISTRY, "sst", info)
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


LINE = "(3 (2 It) (4 (4 works) (2 .)))\n"


def test_words_labels_and_phrases():
    tree, other = decode_trees((LINE + "(1 no)\n").encode(), "train.txt")
    assert (tree.text, tree.label) == ("It works .", 3)
    assert [(phrase.text, phrase.label) for phrase in tree.phrases()] == [
        ("It works .", 3),
        ("It", 2),
        ("works .", 4),
        ("works", 4),
        (".", 2),
    ]
    assert (other.text, other.label) == ("no", 1)


def test_a_word_may_hold_a_no_break_space():
    assert decode_trees("(2 8\u00a01\\/2)\n".encode(), "train.txt")[0].words == ("8\u00a01\\/2",)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("(3 (2 It) (4 works)", "all brackets closed"),
        ("(3 (2 It)) )", "one too many"),
        ("(5 It)", "label 0 to 4 after '[(]', found '5'"),
        ("(It)", "label 0 to 4"),
        ("(3", "all brackets closed"),
        ("(", "found 'the end of the line'"),
        ("(3 )", "one word or some phrases"),
        ("(3 two words)", "one word or some phrases"),
        ("(3 word (2 It))", "one word or some phrases"),
        ("(3 It) word", "all brackets closed"),
        ("(3 It) (2 is)", "all brackets closed"),
        ("", "all brackets closed"),
        ("(1 " * 50_000 + "word" + ")" * 50_000, "at most 500 brackets in brackets"),
    ],
)
def test_a_damaged_line_is_named(line, complaint):
    with pytest.raises(DataError, match=complaint) as caught:
        decode_trees((LINE + line + "\n").encode(), "dev.txt")
    assert "dev.txt, line 2" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"(3 It)", LINE.encode()[:-1], b"(3 \xff)\n"])
def test_a_file_that_is_not_whole(content):
    with pytest.raises(DataError, match=r"dev.txt"):
        decode_trees(content, "dev.txt")
