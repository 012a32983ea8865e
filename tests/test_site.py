"""The documentation site: it builds strictly, holds every public name, and shows the examples as they are."""

import ast
import inspect
import json
import re
import subprocess
import sys

import pytest

import capsroute as cr
from tools import site

pytest.importorskip("mkdocs", reason="the documentation is built with mkdocs")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=site.ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_site_builds_strictly_with_its_pages(built):
    assert len(list(built.rglob("*.html"))) >= 25


def test_no_page_asks_another_host(built):
    for page in built.rglob("*.html"):
        assert not re.findall(r'(?:src|href)="https?://[^"]+\.(?:js|css|woff2?|png|svg)"', page.read_text()), page


@pytest.mark.parametrize("room", site.ROOMS)
def test_every_public_name_of_a_room_is_documented_and_in_the_reference(room, built):
    page = (built / "reference" / f"{room.rpartition('.')[2]}.html").read_text()
    for name, address in site.public_names(room).items():
        assert f'id="{address}"' in page, name
        module, _, own = address.rpartition(".")
        assert inspect.getdoc(getattr(sys.modules[module], own)), f"{address} has no docstring"


@pytest.mark.parametrize("name", cr.__all__)
def test_every_public_name_of_the_package_is_in_the_reference(name, built):
    thing = getattr(cr, name)
    if not inspect.ismodule(thing):
        address = f'id="{thing.__module__}.{thing.__qualname__}"'
        assert any(address in page.read_text() for page in (built / "reference").glob("*.html")), name


def test_equations_are_shown_without_a_script(built):
    page = (built / "mathematics.html").read_text()
    assert page.count("<math ") >= 5
    assert "$$" not in page
    assert "mathjax" not in page.lower()
    assert "katex" not in page.lower()


def test_search_and_a_dark_palette_are_there(built):
    assert (built / "search" / "search_index.json").is_file()
    assert 'data-md-color-scheme="slate"' in (built / "index.html").read_text()


@pytest.mark.parametrize("path", sorted((site.ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_tutorial_is_a_notebook_with_the_same_code(path, built):
    notebook = json.loads((built / "tutorials" / f"{path.stem}.ipynb").read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    code = "\n".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code")
    script = ast.parse(path.read_text())
    assert ast.dump(ast.parse(code)) == ast.dump(ast.Module(script.body[1:], []))  # all but the docstring
    assert f'href="{path.stem}.ipynb"' in (built / "tutorials" / f"{path.stem}.html").read_text()


def test_a_script_becomes_text_and_code(tmp_path, monkeypatch):
    monkeypatch.setattr(site, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text('"""A title.\n\nWords.\n"""\n\n# %%\n# Text here.\nprint(1)\n')
    assert site.tutorial_page(tmp_path / "a.py").startswith(
        "# A title\n\nWords.\n\nText here.\n\n```python\nprint(1)\n```"
    )
