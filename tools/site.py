"""Pages of the documentation site that are made at build time: tutorials from `examples/`, the reference from
docstrings, and pages that live elsewhere in the repository. MkDocs calls these functions; `make docs` builds."""

from __future__ import annotations

import importlib
import inspect
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
    "capsroute.analysis": "Analysis",
}


def tutorial_title(path: Path) -> str:
    """The first line of a script's docstring, without its full stop."""
    return path.read_text(encoding="utf-8").split('"""')[1].strip().splitlines()[0].rstrip(".")


def tutorial_page(path: Path) -> str:
    """A script as a page: its docstring and `# %%` comments are text, the rest is code."""
    _, opening, rest = path.read_text(encoding="utf-8").split('"""', 2)
    title, _, text = opening.strip().partition("\n")
    parts = [f"# {title.rstrip('.')}", text.strip()]
    for cell in re.split(r"^# %%.*\n", rest, flags=re.MULTILINE):
        lines = cell.strip("\n").splitlines()
        words = 0
        while words < len(lines) and lines[words].startswith("#"):
            words += 1
        parts.append("\n".join(line.removeprefix("#").removeprefix(" ") for line in lines[:words]))
        code = "\n".join(lines[words:]).strip("\n")
        if code:
            parts.append(f"```python\n{code}\n```")
    name = path.relative_to(ROOT)
    parts.append(f"The whole script: `{name}`; run it with `python {name}`.")
    return "\n\n".join(part for part in parts if part) + "\n"


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
    """Every page that is made: address in the site -> Markdown."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in ELSEWHERE.items()}
    for path in sorted((ROOT / "examples").glob("*.py")):
        made[f"tutorials/{path.stem}.md"] = tutorial_page(path)
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
    """Links between files of the repository become links between pages of the site."""
    for address, source in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{source})", f"]({address})").replace(f"]({source})", f"]({address})")
    return re.sub(r"\]\((?:\.\./)?docs/", "](", markdown)
