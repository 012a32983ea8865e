"""Addresses in the package's metadata: those of the repository in which a release is built, and never guessed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


def urls(environment: Mapping[str, str]) -> dict[str, str]:
    """What a workflow knows of its repository; nothing elsewhere.

    >>> from tools.urls import urls
    >>> urls({"GITHUB_SERVER_URL": "https://git.example", "GITHUB_REPOSITORY": "us/capsroute"})["Issues"]
    'https://git.example/us/capsroute/issues'
    >>> urls({})
    {}
    """
    server, repository = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    if not server or not repository:
        return {}
    source = f"{server}/{repository}"
    return {"Source": source, "Issues": f"{source}/issues", "Changelog": f"{source}/blob/main/CHANGELOG.md"}


class Urls(MetadataHookInterface):
    """Called by hatchling when the package is built."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = urls(os.environ)
