"""The explorer as a folder of plain files: the page, networks as ONNX, and onnxruntime's WebAssembly to run them.

Large files are stored gzipped and unpacked by the page itself: the folder is as small on any file server as on one
that compresses.
"""

import gzip
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path
from torch import nn

from capsroute.data import DataError, FetchError
from capsroute.data.sources import NpmPackage
from capsroute.explorer.engine import Engine
from capsroute.explorer.network import Network
from capsroute.explorer.server import STATIC
from capsroute.files import write_atomically
from capsroute.inference.exported_programs import save_onnx
from capsroute.inference.exporting import OPSET

# The smallest WebAssembly of the 1.2x line, single-threaded when told so: 11.2 MB, 2.9 MB gzipped.
RUNTIME = "onnxruntime-web@1.22.0"
RUNTIME_FILES = {
    "ort.mjs": "package/dist/ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs": "package/dist/ort-wasm-simd-threaded.mjs",  # loaded by the first, by this name
    "ort.wasm": "package/dist/ort-wasm-simd-threaded.wasm",
}
NPM_SECONDS = 300
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'"
)


def write_site(networks: Mapping[str, Network], folder: str | os.PathLike[str]) -> Iterator[str]:
    """Write the explorer of these networks into a folder, new or of an earlier site; yields what is done, in lines."""
    folder = Path(folder)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "networks.json").is_file():
        raise ValueError(f"--static: expected a new folder, or one with an explorer in it, got {folder}")
    runtime = fetch_runtime()
    (folder / "static").mkdir(parents=True, exist_ok=True)
    for file in STATIC.iterdir():
        shutil.copyfile(file, folder / "static" / file.name)
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    (folder / "index.html").write_text(page.replace("<head>", f"<head>\n  {policy}", 1), encoding="utf-8")
    (folder / "static" / "index.html").unlink()
    (folder / "runtime").mkdir(exist_ok=True)
    for name in RUNTIME_FILES:
        if name.endswith(".mjs"):
            shutil.copyfile(runtime / name, folder / "runtime" / name)
        else:
            _pack((runtime / name).read_bytes(), folder / "runtime" / f"{name}.gz")
    for name, network in networks.items():
        yield f"{network.title}: {_write_network(network, folder / 'networks' / name) / 1e6:.1f} MB"
    titles = [{"name": name, "title": network.title} for name, network in networks.items()]
    _write_json({"form": "static", "networks": titles}, folder / "networks.json")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    serve = f"python -m http.server -d {shlex.quote(str(folder))}"
    yield f"{folder}: {size / 1e6:.1f} MB in all; serve it with any file server ({serve})"


def fetch_runtime() -> Path:
    """The folder with onnxruntime's files, fetched by npm the first time and kept."""
    kept = user_cache_path("capsroute") / "explorer" / RUNTIME.replace("@", "-")
    if all((kept / name).is_file() for name in RUNTIME_FILES):
        return kept
    if shutil.which("npm") is None:
        raise ValueError(f"--static: needs npm to fetch {RUNTIME} the first time, and there is no npm here")
    package, version = RUNTIME.split("@")
    source = NpmPackage(package, version, {member: name for name, member in RUNTIME_FILES.items()}, seconds=NPM_SECONDS)
    try:
        with tempfile.TemporaryDirectory() as aside:
            contents = source.collect(Path(aside), lambda text, done, total: None)
    except (FetchError, DataError) as error:
        problem = f"npm could not fetch {RUNTIME} within {NPM_SECONDS} seconds"
        raise ValueError(f"--static: {problem}: {error}") from None
    for name, content in contents.items():
        write_atomically(kept / name, content)
    return kept


def _write_network(network: Network, folder: Path) -> int:
    """Description and weights of one network; how many bytes they are."""
    engine = Engine(network)
    folder.mkdir(parents=True, exist_ok=True)
    _write_json(engine.describe(), folder / "about.json")
    _export(engine.exposed, folder / "encoder.onnx.gz")
    if engine.painter is not None:
        _export(engine.painter, folder / "decoder.onnx.gz")
    return sum(file.stat().st_size for file in folder.iterdir())


def _export(module: nn.Module, path: Path) -> None:
    with tempfile.TemporaryDirectory() as aside:
        plain = Path(aside) / "network.onnx"
        save_onnx(module, plain, {"opset": OPSET})  # type: ignore[arg-type]
        _pack(plain.read_bytes(), path)


def _pack(content: bytes, path: Path) -> None:
    path.write_bytes(gzip.compress(content, 9, mtime=0))


def _write_json(value: Any, path: Path) -> None:
    path.write_text(json.dumps(value), encoding="utf-8")
