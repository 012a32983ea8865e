"""A package that is missing is named, with the way to install it."""

import importlib
import sys

import pytest

from capsroute import data
from capsroute.data.errors import PACKAGES, named_extra

MISSING = r"{} is missing; install it with: pip install 'capsroute\[train\]'"


def forget(module, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)


@pytest.mark.parametrize(("module", "package"), PACKAGES.items())
def test_missing_package_of_ours(module, package, monkeypatch):
    forget(module, monkeypatch)
    with pytest.raises(ModuleNotFoundError, match=MISSING.format(package)):
        named_extra(importlib.import_module)(module)


def test_missing_package_is_named_where_images_are_read(monkeypatch, tmp_path):
    forget("PIL", monkeypatch)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    with pytest.raises(ModuleNotFoundError, match=MISSING.format("pillow")):
        data.from_folder(tmp_path)


def test_what_is_not_ours_is_left_alone():
    @named_extra
    def needs():
        import no_such_module  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        needs()
