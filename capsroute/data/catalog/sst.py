"""The Stanford Sentiment Treebank (Socher et al. 2013): sentences as bracketed trees with a label on every phrase.

`load("sst")` gives root sentences with five classes (SST-5/R); `classes=2` gives SST-2/R, without neutral ones;
`phrases=True` gives all unique phrases of the trees, on which Heinsen 2019 (section 4.2) trains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import torch

from capsroute.data.data_files import DataFile, read_file
from capsroute.data.datasets import DatasetInfo, register
from capsroute.data.errors import DataError
from capsroute.data.sets import TextSet
from capsroute.data.sources import PublicAddress

TOKENS = re.compile(r"\(|\)|[^ \t\r()]+")  # a word may hold a no-break space
DEEPEST = 500  # brackets in brackets; every level holds its words again, and a sentence of SST has 56 words at most
LABELS = ("0", "1", "2", "3", "4")


@dataclass(frozen=True)
class Tree:
    """A labelled phrase: a word, or the phrases it is made of."""

    label: int
    words: tuple[str, ...]
    parts: tuple[Tree, ...] = ()

    def phrases(self) -> list[Tree]:
        """This phrase and every phrase within it, the longest first in reading order."""
        found, open_ = [], [self]
        while open_:
            tree = open_.pop()
            found.append(tree)
            open_.extend(reversed(tree.parts))
        return found

    @property
    def text(self) -> str:
        return " ".join(self.words)


def decode_trees(content: bytes, name: str) -> list[Tree]:
    """The trees of a file, one from each line."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{name}: expected UTF-8 text, found something else ({error})") from None
    lines = text.split("\n")
    if lines[-1] != "" or len(lines) == 1:
        raise DataError(f"{name}: expected the last line to be whole, found no line end after {lines[-1][-20:]!r}")
    return [_parse(line, f"{name}, line {number}") for number, line in enumerate(lines[:-1], start=1)]


def _parse(line: str, where: str) -> Tree:
    # A stack of phrases still open, each as its label and what it holds so far; the bottom collects the whole tree.
    open_: list[tuple[int, list[Tree], list[str]]] = [(-1, [], [])]
    tokens = iter(TOKENS.findall(line))
    for token in tokens:
        if token == "(":
            label = next(tokens, "the end of the line")
            if label not in LABELS:
                raise DataError(f"{where}: expected a label 0 to 4 after '(', found {label!r}")
            open_.append((int(label), [], []))
            if len(open_) > DEEPEST:
                raise DataError(f"{where}: expected at most {DEEPEST} brackets in brackets, found more")
        elif token == ")":
            tree = _close(*open_.pop(), where)
            if not open_:
                raise DataError(f"{where}: expected as many ')' as '(', found one too many")
            open_[-1][1].append(tree)
        else:
            open_[-1][2].append(token)
    (_, trees, words) = open_[0]
    if len(open_) != 1 or len(trees) != 1 or words:
        raise DataError(f"{where}: expected one tree with all brackets closed, found {line[:40]!r}")
    return trees[0]


def _close(label: int, parts: list[Tree], words: list[str], where: str) -> Tree:
    if bool(parts) == bool(words) or len(words) > 1:
        raise DataError(f"{where}: expected one word or some phrases in brackets, found {len(words)} and {len(parts)}")
    return Tree(label, tuple(words) or tuple(word for part in parts for word in part.words), tuple(parts))


FIVE = ("very negative", "negative", "neutral", "positive", "very positive")
TWO = ("negative", "positive")
NEUTRAL = 2
FILES = {"train": DataFile("train.txt"), "validation": DataFile("dev.txt"), "test": DataFile("test.txt")}


def _read(info: DatasetInfo, folder: Path, split: str, classes: int = 5, phrases: bool = False) -> TextSet:
    if classes not in (2, 5):
        raise ValueError(f"classes: expected 2 or 5, got {classes}")
    labels_of: dict[str, int] = {}  # with phrases: the first label of each text
    pairs: list[tuple[str, int]] = []
    for part in split.split("+"):
        trees = decode_trees(read_file(folder, FILES[part]), str(folder / FILES[part].name))
        if len(trees) != info.sizes[part]:
            raise DataError(f"{folder / FILES[part].name}: expected {info.sizes[part]} trees, found {len(trees)}")
        pairs += [(tree.text, tree.label) for tree in trees]
        for tree in trees if phrases else ():
            for phrase in tree.phrases():
                labels_of.setdefault(phrase.text, phrase.label)
    pairs = list(labels_of.items()) if phrases else pairs
    if classes == 2:
        pairs = [(text, int(label > NEUTRAL)) for text, label in pairs if label != NEUTRAL]
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return TextSet(tuple(text for text, _ in pairs), labels, TWO if classes == 2 else FIVE, info.name, split)


register(
    DatasetInfo(
        name="sst",
        title="SST: sentences of film reviews with their sentiment",
        classes=FIVE,
        shape=(),
        sizes={"train": 8_544, "validation": 1_101, "test": 2_210},
        licence="none stated (Socher et al. 2013)",
        origin="the sentiment page of Stanford NLP (trainDevTestTrees_PTB.zip)",
        read=_read,
        files=tuple(FILES.values()),
        sources=(
            PublicAddress.archive(
                "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
                "sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
                (file.name for file in FILES.values()),
                "trees/",
            ),
        ),
    )
)
