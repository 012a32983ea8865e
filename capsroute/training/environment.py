"""What a run was made with: versions, revision, hardware, command."""

import os
import platform
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import capsroute

PACKAGES = ("torch", "numpy", "safetensors", "triton", "pydantic")


def describe_environment(device: torch.device, world_size: int = 1) -> dict[str, Any]:
    """Library versions, git revision, hardware and command line, as plain data.

    >>> import torch
    >>> from capsroute.training.environment import describe_environment
    >>> describe_environment(torch.device("cpu"))["device"]
    'cpu'
    """
    return {
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "capsroute": capsroute.__version__,
        "revision": revision(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := package_version(name))},
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "hardware": _hardware(device),
        "processes": world_size,
        "threads": torch.get_num_threads(),
    }


def package_version(package: str) -> str | None:
    """The version of an installed package; None where it is not."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def revision() -> str | None:
    """The commit of the checkout that capsroute is imported from, with a + when files differ from it.

    Where there is no checkout, or no git, the variable CAPSROUTE_REVISION says it.
    """
    if given := os.environ.get("CAPSROUTE_REVISION"):
        return given
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        return f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    return f"{processor()}, {os.cpu_count()} cores"


def processor() -> str:
    """The CPU's own name, which `platform` does not know on Linux."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
