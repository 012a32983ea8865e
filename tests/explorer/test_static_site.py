"""The explorer without a server: which files are written, and what is said where they cannot be."""

import gzip
import json
import re
import shutil

import pytest

from capsroute.explorer import static_site
from capsroute.explorer.static_site import fetch_runtime, write_site


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """Files in place of onnxruntime's, so that nothing is fetched."""
    kept = tmp_path / "runtime"
    kept.mkdir()
    for name in static_site.RUNTIME_FILES:
        (kept / name).write_bytes(name.encode())
    monkeypatch.setattr(static_site, "fetch_runtime", lambda: kept)
    # What export makes is looked at where a browser runs it.
    monkeypatch.setattr(static_site, "save_onnx", lambda module, path, metadata: path.write_bytes(b"onnx"))
    return kept


def test_a_site_is_plain_files_that_name_no_address(one_digit, runtime, tmp_path):
    lines = list(write_site({"small": one_digit}, tmp_path / "site"))
    site = tmp_path / "site"
    assert lines[0].startswith("Small one: ")
    assert json.loads((site / "networks.json").read_text())["form"] == "static"
    assert gzip.decompress((site / "runtime" / "ort.wasm.gz").read_bytes()) == b"ort.wasm"
    assert gzip.decompress((site / "networks/small/decoder.onnx.gz").read_bytes()) == b"onnx"
    page = (site / "index.html").read_text()
    assert "default-src 'none'" in page
    assert re.findall(r"(?:src|href)=\"(?!static/|data:,)([^\"]*)\"", page) == []
    assert {file.name for file in (site / "static").iterdir()} == {
        file.name for file in static_site.STATIC.iterdir() if file.name != "index.html"
    }


def test_a_site_is_written_over_one_and_over_nothing_else(one_digit, runtime, tmp_path):
    for _ in range(2):
        list(write_site({"small": one_digit}, tmp_path / "site"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="--static: expected a new folder"):
        list(write_site({"small": one_digit}, tmp_path / "mine"))
    assert [file.name for file in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.fixture
def nothing_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(static_site, "user_cache_path", lambda name: tmp_path / "cache")


def test_without_npm_the_reason_is_given(nothing_kept, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ValueError, match=r"needs npm to fetch onnxruntime-web@[\d.]+ the first time"):
        fetch_runtime()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'no such registry' >&2; exit 1", "could not fetch.*no such registry"),
        ("exec sleep 30", "within 0.2 seconds"),
    ],
)
def test_what_npm_says_is_passed_on(nothing_kept, monkeypatch, tmp_path, script, said):
    npm = tmp_path / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(0o755)
    monkeypatch.setattr(shutil, "which", lambda name: str(npm))
    monkeypatch.setattr(static_site, "NPM_SECONDS", 0.2 if "sleep" in script else 60)
    with pytest.raises(ValueError, match=said):
        fetch_runtime()
