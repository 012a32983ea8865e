"""The bracketed sentiment trees of SST (Socher et al. 2013), one a line: `(3 (2 It) (4 works))`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from capsroute.data.errors import DataError

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
