"""A package that is missing is named, with the way to install it: wherever one is needed."""

import subprocess
import sys
import textwrap

import pytest

from capsroute.extras import PACKAGES, named_extra

# What is asked for, without which module, and the package and extra that must be named.
CASES = [
    ("cr.data.load('svhn')", "platformdirs", "platformdirs", "train"),
    ("cr.data.from_folder('pictures')", "PIL", "pillow", "train"),
    ("cr.predict(model, torch.rand(1, 20, 30))", "PIL", "pillow", "train"),
    ("cr.training", "pydantic", "pydantic", "train"),
    ("cr.analysis.draw_confusions(None)", "matplotlib", "matplotlib", "train"),
    ("cr.inference.filters.ClusteringFilter()._model(2)", "sklearn", "scikit-learn", "train"),
    ("cr.inference.export(model, 'model.onnx')", "onnxscript", "onnxscript", "export"),
    ("cr.predict('model.onnx', torch.rand(1, 8, 8))", "onnxruntime", "onnxruntime", "export"),
    ("model.push_to_hub('someone/something')", "huggingface_hub", "huggingface_hub", "hub"),
]
# One process for all: what was imported is forgotten between two of them.
CODE = """
    import os, sys, tempfile
    os.chdir(tempfile.mkdtemp())
    os.makedirs("pictures/a")
    for name in ("pictures/a/1.png", "model.onnx"):
        open(name, "w").close()
    import torch, capsroute as cr
    model = cr.create_model("capsnet_small", image_size=8).eval()
    for asked, missing, _, _ in CASES:
        kept = {name: module for name, module in sys.modules.items() if name.split(".")[0] in ("capsroute", missing)}
        for name in kept:
            if name.split(".")[0] == missing or name.startswith(("capsroute.training", "capsroute.explorer")):
                del sys.modules[name]
        sys.modules[missing] = None  # as if it were not installed
        vars(cr).pop("training", None)
        try:
            exec(asked)
            print("nothing is missing")
        except ModuleNotFoundError as error:
            print(error)
        except Exception as error:
            print(type(error).__name__, str(error).splitlines()[0])
        del sys.modules[missing]
        sys.modules.update(kept)
"""


def test_what_is_missing_is_named_wherever_it_is_needed():
    code = f"CASES = {CASES!r}\n{textwrap.dedent(CODE)}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (asked, missing, package, extra), said in zip(CASES, done.stdout.splitlines(), strict=True):
        expected = f"{package} is missing; install it with: pip install 'capsroute[{extra}]'"
        assert said == expected, f"{asked} without {missing}"


def test_commands_say_it_in_one_line(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from capsroute.cli.app import app

    for name in [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    (tmp_path / "model.onnx").touch()
    done = CliRunner().invoke(app, ["predict", str(tmp_path / "model.onnx"), "."])
    assert done.exit_code == 1
    assert done.output == "onnxruntime is missing; install it with: pip install 'capsroute[export]'\n"


def test_every_extra_is_one_of_the_project():
    from pathlib import Path

    text = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    for package, extra in PACKAGES.values():
        assert f"\n{extra} = [" in text
        assert f'"{package}' in text


def test_what_is_not_ours_is_left_alone():
    @named_extra
    def needs():
        import no_such_module  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        needs()
