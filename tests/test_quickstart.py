"""The quick start needs what the extra `start` brings, and nothing else that is heavy."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
# What `make quickstart` does not install.
LEFT_OUT = ("sklearn", "scipy", "torchdata", "triton", "onnx", "onnxruntime", "pytest", "mypy", "selenium")


def test_quick_start_runs_without_what_it_does_not_install(tmp_path):
    code = f"""
        import sys
        for name in {LEFT_OUT!r}:
            sys.modules[name] = None  # as if it were not installed
        from capsroute.cli import main
        sys.argv = ["capsroute", "train", "--out", "run", "--set", "training.max_steps=3"]
        sys.argv += ["--set", "evaluation.speed_seconds=0.02"]
        main()
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "master coefficients" in done.stdout
    assert (tmp_path / "run" / "report.md").is_file()


def test_extras_build_on_each_other():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    names = {re.split(r"[\[<>=; ]", entry)[0] for entry in extras["start"]}
    assert not names & {"scikit-learn", "scipy", "pytest", "mypy", "selenium", "mkdocs-material", "triton"}
    assert "capsroute[start]" in extras["train"]


def test_quick_start_installs_that_extra():
    made = subprocess.run(
        ["make", "--dry-run", "--always-make", "quickstart"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert '".[start]"' in made
    assert '".[dev]"' not in made
