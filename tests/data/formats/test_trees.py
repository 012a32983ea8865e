import pytest

from capsroute.data import DataError
from capsroute.data.formats.trees import decode_trees

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
