"""A package that is missing is named, with the way to install it."""

import sys

import pytest

from capsroute import data
from capsroute.data.extras import named_extra


@pytest.mark.parametrize(("module", "package"), [("sklearn", "scikit-learn"), ("PIL", "pillow")])
def test_missing_package_of_ours(module, package, monkeypatch, tmp_path):
    for name in [name for name in sys.modules if name.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    message = rf"{package} is missing; install it with: pip install 'capsroute\[train\]'"
    with pytest.raises(ModuleNotFoundError, match=message):
        data.load("digits") if module == "sklearn" else data.from_folder(tmp_path)


def test_what_is_not_ours_is_left_alone():
    @named_extra
    def needs():
        import no_such_module  # noqa: F401

    with pytest.raises(ModuleNotFoundError, match="No module named 'no_such_module'"):
        needs()
