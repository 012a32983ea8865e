"""The package's metadata name the repository that built it, and no other."""

from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the package is built with hatchling")
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

ROOT = str(Path(__file__).parents[2])


def built() -> dict[str, str]:
    return ProjectMetadata(ROOT, PluginManager()).core.urls


def test_a_release_names_the_repository_that_built_it(monkeypatch):
    monkeypatch.setenv("GITHUB_SERVER_URL", "https://git.example")
    monkeypatch.setenv("GITHUB_REPOSITORY", "us/capsroute")
    assert built()["Source"] == "https://git.example/us/capsroute"
    assert built()["Changelog"] == "https://git.example/us/capsroute/blob/main/CHANGELOG.md"


def test_a_build_elsewhere_names_none(monkeypatch):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    assert built() == {}
