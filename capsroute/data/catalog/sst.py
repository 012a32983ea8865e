"""The Stanford Sentiment Treebank (Socher et al. 2013): sentences as bracketed trees with a label on every phrase.

`load("sst")` gives root sentences with five classes (SST-5/R); `classes=2` gives SST-2/R, without neutral ones;
`phrases=True` gives all unique phrases of the trees, on which Heinsen 2019 (section 4.2) trains.
"""

from __future__ import annotations

from pathlib import Path

import torch

from capsroute.data.errors import DataError
from capsroute.data.files import DataFile, read_file
from capsroute.data.formats.trees import decode_trees
from capsroute.data.registry import DatasetInfo, register
from capsroute.data.sets import TextSet
from capsroute.data.sources import Download, PublicAddress

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
    return _text_set(list(labels_of.items()) if phrases else pairs, classes, info.name, split)


def _text_set(pairs: list[tuple[str, int]], classes: int, name: str, split: str) -> TextSet:
    if classes == 2:
        pairs = [(text, int(label > NEUTRAL)) for text, label in pairs if label != NEUTRAL]
    labels = torch.tensor([label for _, label in pairs], dtype=torch.int64)
    return TextSet(tuple(text for text, _ in pairs), labels, TWO if classes == 2 else FIVE, name, split)


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
            PublicAddress(
                (
                    Download(
                        "https://nlp.stanford.edu/sentiment/trainDevTestTrees_PTB.zip",
                        "sha256:5c613a4f673fc74097d523a2c83f38e0cc462984d847b82c7aaf36b01cbbbfcc",
                        members={f"trees/{file.name}": file.name for file in FILES.values()},
                    ),
                )
            ),
        ),
    )
)
