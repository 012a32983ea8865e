"""Pages of the documentation site that are made at build time: tutorials from `examples/`, the reference from
docstrings, and pages that live elsewhere in the repository. MkDocs calls these functions; `make docs` builds."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

# Page of the site -> where it lives in the repository.
ELSEWHERE = {
    "results.md": "results/README.md",
    "benchmarks.md": "results/bench/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
}
# Room -> what its page of the reference is called.
ROOMS = {
    "capsroute.routing": "Routing algorithms",
    "capsroute.votes": "Votes",
    "capsroute.form": "The capsule form",
    "capsroute.layers": "Layers",
    "capsroute.losses": "Losses",
    "capsroute.models": "Models",
    "capsroute.data": "Data",
    "capsroute.training": "Training",
    "capsroute.inference": "Inference",
    "capsroute.prediction": "Prediction",
    "capsroute.analysis": "Analysis",
}


def tutorial_title(path: Path) -> str:
    """The first line of a script's docstring, without its full stop."""
    return path.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0].rstrip(".")


def tutorial_cells(path: Path) -> list[tuple[str, str]]:
    """A script as ("markdown" | "code", text): its docstring and `# %%` comments are text, the rest is code."""
    _, opening, rest = path.read_text(encoding="utf-8").split('"""', 2)
    title, _, text = opening.strip().partition("\n")
    cells = [("markdown", f"# {title.rstrip('.')}\n\n{text.strip()}".strip())]
    for cell in re.split(r"^# %%.*\n", rest, flags=re.MULTILINE):
        lines = cell.strip("\n").splitlines()
        words = 0
        while words < len(lines) and lines[words].startswith("#"):
            words += 1
        cells.append(("markdown", "\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:words])))
        cells.append(("code", "\n".join(lines[words:]).strip("\n")))
    return [(kind, text) for kind, text in cells if text]


def tutorial_page(path: Path) -> str:
    """A script as a page."""
    parts = [f"```python\n{text}\n```" if kind == "code" else text for kind, text in tutorial_cells(path)]
    name = path.relative_to(ROOT)
    parts.append(f"The whole script: `{name}`; run it with `python {name}`. [As a notebook]({path.stem}.ipynb).")
    return "\n\n".join(parts) + "\n"


def tutorial_notebook(path: Path) -> str:
    """A script as a Jupyter notebook (format 4.5)."""
    more: dict[str, dict[str, Any]] = {"markdown": {}, "code": {"execution_count": None, "outputs": []}}
    cells = [
        {"cell_type": kind, "id": f"cell-{at}", "metadata": {}, "source": text.splitlines(keepends=True), **more[kind]}
        for at, (kind, text) in enumerate(tutorial_cells(path))
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return json.dumps(
        {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}, indent=1
    )


def equations(markdown: str) -> str:
    """Equations between lines of `$$`, as MathML, which browsers show without any script."""
    from latex2mathml.converter import convert

    def shown(found: re.Match[str]) -> str:
        return f'<div class="equation">{convert(found[1], display="block")}</div>'

    return re.sub(r"^\$\$\n(.*?)\n\$\$$", shown, markdown, flags=re.MULTILINE | re.DOTALL)


def public_names(room: str) -> dict[str, str]:
    """What a room promises: functions and classes by name -> where each is written. Rooms have pages of their own."""
    module = importlib.import_module(room)
    objects = {name: getattr(module, name) for name in module.__all__}
    return {
        name: f"{thing.__module__}.{thing.__qualname__}"
        for name, thing in objects.items()
        if inspect.isfunction(thing) or inspect.isclass(thing)
    }


def reference_page(room: str, title: str) -> str:
    """A page with every public name of a room, from its docstrings."""
    names = public_names(room)
    return f"# {title}\n\n`{room}`: {', '.join(f'`{name}`' for name in names)}\n\n" + "".join(
        f"::: {address}\n\n" for address in names.values()
    )


def pages() -> dict[str, str]:
    """Every page and notebook that is made: address in the site -> text."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in ELSEWHERE.items()}
    for path in sorted((ROOT / "examples").glob("*.py")):
        made[f"tutorials/{path.stem}.md"] = tutorial_page(path)
        made[f"tutorials/{path.stem}.ipynb"] = tutorial_notebook(path)
    for room, title in ROOMS.items():
        made[f"reference/{room.rpartition('.')[2]}.md"] = reference_page(room, title)
    return made


def on_config(config: Any) -> Any:
    """Put the pages that are made into the navigation."""
    examples = [
        {tutorial_title(path): f"tutorials/{path.stem}.md"} for path in sorted((ROOT / "examples").glob("*.py"))
    ]
    reference = [{title: f"reference/{room.rpartition('.')[2]}.md"} for room, title in ROOMS.items()]
    for entry in config.nav:
        for title, value in entry.items():
            if value == "tutorials/":
                entry[title] = examples
            elif value == "reference/":
                entry[title] = reference
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made."""
    from mkdocs.structure.files import File

    for address, text in pages().items():
        files.append(File.generated(config, address, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links between files of the repository become links between pages of the site; equations become MathML."""
    markdown = equations(markdown)
    for address, source in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{source})", f"]({address})").replace(f"]({source})", f"]({address})")
    return re.sub(r"\]\((?:\.\./)?docs/", "](", markdown)
