"""Importing the library needs torch, numpy and safetensors, nothing else; and no room imports one above it."""

import ast
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "capsroute"
OPTIONAL = (
    "triton",
    "typer",
    "rich",
    "pydantic",
    "matplotlib",
    "sklearn",
    "scipy",
    "PIL",
    "onnx",
    "pooch",
    "starlette",
)

# Data flows one way: a room may import itself and what stands below it. Training ends with an evaluation of fast
# inference and a report with pictures, so inference and analysis are below it.
ROOMS = ["extras", "bars", "deprecation", "files", "naming"]
ROOMS += ["form", "votes", "patches", "routing", "layers", "losses", "data", "models"]
ROOMS += ["inference", "prediction", "analysis", "training", "pretrained", "bench", "explorer", "cli"]


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_no_optional_package():
    # torch itself may bring some (it does bring none of these on a CPU), so what it brings is not held against us.
    loaded = in_a_fresh_process(f"""
        import sys, torch, numpy, safetensors
        before = set(sys.modules)
        import capsroute as cr
        cr.layers, cr.losses, cr.models
        print([name for name in {OPTIONAL!r} if name in sys.modules and name not in before])
    """)
    assert loaded.strip() == "[]"


def test_the_library_works_where_optional_packages_are_missing():
    output = in_a_fresh_process(f"""
        import sys
        import torch

        for name in {OPTIONAL!r}:
            sys.modules[name] = None  # as if it were not installed: import raises, find_spec finds nothing

        import capsroute as cr

        u, W = torch.randn(2, 6, 1, 8, requires_grad=True), torch.randn(6, 3, 8, 4)
        cr.max_min_routing(cr.LinearVotes(u, W)).poses.sum().backward()
        layer = cr.layers.CapsuleLinear(children=6, parents=3, in_pose=8, out_pose=4)
        lengths = cr.routing.lengths(layer(u).poses)
        cr.losses.margin(lengths, torch.tensor([0, 2])).backward()
        print(u.grad.shape, len(cr.list_models()) > 0)
    """)
    assert output.strip() == "torch.Size([2, 6, 1, 8]) True"


def test_public_names_are_listed_and_exist():
    import capsroute as cr

    assert set(cr.__all__) == set(dir(cr))
    for name in cr.__all__:
        assert getattr(cr, name) is not None
    with pytest.raises(AttributeError, match="module 'capsroute' has no attribute 'nonsense'"):
        _ = cr.nonsense


def room(module: str) -> str | None:
    """`capsroute.routing.em` -> `routing`."""
    parts = module.split(".")
    named = parts[1] if parts[0] == "capsroute" and len(parts) > 1 else ""
    return named if named in EXISTING else None


def imports(path: Path) -> set[str]:
    """The rooms a file imports, wherever in the file it does."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {room(alias.name) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {room(f"{node.module}.{alias.name}") for alias in node.names}
    return {each for each in found if each is not None}


EXISTING = {path.stem for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"}
EXISTING -= {"__init__", "__main__", "__pycache__"}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in EXISTING)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_room_imports_upward(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for other in imports(path):
        assert ROOMS.index(other) <= ROOMS.index(own), f"{own} imports capsroute.{other}, which is above it"


def test_every_room_has_its_place():
    assert set(ROOMS) >= EXISTING, "a room that the order of rooms does not know"


def test_only_the_form_knows_triton():
    for path in PACKAGE.rglob("*.py"):
        if "import triton" in path.read_text() or "from triton" in path.read_text():
            assert path.relative_to(PACKAGE).parts[0] == "form", path
