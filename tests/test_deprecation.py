"""The policy of CONTRIBUTING.md: two minor releases of warning, in one form, and then the name is gone."""

import ast
import re
import warnings
from pathlib import Path

import pytest

from capsroute.deprecation import removal, warn_deprecated

ROOT = Path(__file__).parents[1]
VERSION = re.search(r'^version = "(\d+)\.(\d+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
FILES = [path for path in sorted((ROOT / "capsroute").rglob("*.py")) if path.name != "deprecation.py"]


def calls(name: str) -> list[tuple[Path, ast.Call]]:
    """Every call of a function in the package."""
    found = []
    for path in FILES:
        text = path.read_text()
        if name in text:
            nodes = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
            found += [
                (path, node) for node in nodes if getattr(node.func, "id", getattr(node.func, "attr", "")) == name
            ]
    return found


@pytest.mark.parametrize(("since", "gone"), [("0.2", "0.4"), ("0.9", "0.11"), ("1.3.1", "1.5")])
def test_two_minor_releases_of_warning(since, gone):
    assert removal(since) == gone


def test_the_warning_names_both_names_both_versions_and_the_line_to_change():
    def old():
        warn_deprecated("cr.old", "cr.new", since="0.2")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        old()
    [warning] = caught
    assert warning.category is DeprecationWarning
    assert str(warning.message) == "cr.old is deprecated since capsroute 0.2 and goes in 0.4; write cr.new"
    assert warning.filename == __file__
    assert Path(__file__).read_text().splitlines()[warning.lineno - 1].strip() == "old()"


def test_nothing_is_deprecated_in_another_way():
    for path in FILES:
        names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        assert "DeprecationWarning" not in names, f"{path}: say it with warn_deprecated"


def test_what_should_be_gone_is_gone():
    now = (int(VERSION[1]), int(VERSION[2]))
    found = calls("warn_deprecated")
    assert found
    for path, call in found:
        [since] = [keyword.value.value for keyword in call.keywords if keyword.arg == "since"]
        gone = tuple(int(part) for part in removal(since).split("."))
        assert now < gone, f"{path}:{call.lineno}: deprecated since {since}, to be gone in {removal(since)}"


def test_every_deprecation_is_held_by_a_test():
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    for path, call in calls("warn_deprecated"):
        old = call.args[0].value
        assert f"{old} is deprecated" in tests, f"{path}:{call.lineno}: no test expects this warning"
