"""Everything that the documentation shows runs: `>>>` examples of docstrings, Python blocks of README.md and docs/*.md.

A block that must not run says so after its language, e.g. ```python (needs a GPU). Blocks of a page share their names.
"""

import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest
import torch

import capsroute as cr

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in (*(ROOT / "capsroute").rglob("*.py"), *(ROOT / "tools").glob("*.py"))
    if path.name != "__main__.py"
)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    """Each example has a folder and random numbers of its own."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)


def load(name: str):
    """The module, or a skip that names the optional package it needs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("capsroute"):
            raise
        pytest.skip(f"needs {missing.name}, which is not installed")


def examples(module) -> list[doctest.DocTest]:
    """Of the module itself and of all that is defined in it; doctest's own search would miss decorated functions."""
    finder, found = doctest.DocTestFinder(), []
    found += doctest.DocTestFinder(recurse=False).find(module, module.__name__)
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        if own and (inspect.isclass(value) or inspect.isroutine(inspect.unwrap(value))):
            found += finder.find(value, f"{module.__name__}.{name}", module=False, globs={})
    return [test for test in found if test.examples]


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_run(name):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in examples(load(name)):
        runner.run(test, out=report.append, clear_globs=True)
    assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page):
    names: dict = {"__name__": "__main__"}
    for block in BLOCK.finditer(page.read_text()):
        line = page.read_text()[: block.start(1)].count("\n")
        code = compile("\n" * line + block[1], str(page), "exec")  # so that an error names the page's own line
        exec(code, names)


@pytest.mark.parametrize("name", [name for name in cr.__all__ if name not in cr._ROOMS and name != "form"])
def test_public_names_show_an_example(name):
    text = getattr(cr, name).__doc__ or ""
    assert ">>>" in text or "for an example" in text


def test_examples_of_decorated_functions_are_found():
    assert [test.name for test in examples(importlib.import_module("capsroute.routing.dynamic"))] == [
        "capsroute.routing.dynamic.dynamic_routing"
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_are_there(page):
    named = re.findall(r"`(?:tests/)?((?:[a-z_]+/)*test_[a-z_]+\.py)(?:::(test_\w+))?", page.read_text())
    for path, test in named:
        files = list((ROOT / "tests").rglob(path))
        assert files, f"there is no {path}"
        assert any(test.rstrip("_") in file.read_text() for file in files), f"{path} has no {test}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_options_that_a_page_shows_are_there(page):
    typer = pytest.importorskip("typer")
    app = importlib.import_module("capsroute.cli.app").app
    for line in re.findall(r"(?:`|^ *)capsroute ([a-z][^`\n]*)", page.read_text(), re.MULTILINE):
        command, words = typer.main.get_command(app), line.split("  ")[0].split("#")[0].split()
        while words and hasattr(command, "commands"):
            assert words[0] in command.commands, line
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.split("=")[0] for word in words if word.startswith("--")} <= known, line
