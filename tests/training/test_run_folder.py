"""Where runs go."""

import pytest

from capsroute.training import RunFolder
from capsroute.training.run_folder import choose_folder


def test_taken_names_are_numbered(tmp_path):
    first = choose_folder("digits", tmp_path)
    assert first == tmp_path / "digits"
    first.mkdir()
    second = choose_folder("digits", tmp_path)
    assert second == tmp_path / "digits-2"
    second.mkdir()
    assert choose_folder("digits", tmp_path, resume=True) == second
    assert choose_folder("other", tmp_path, resume=True) == tmp_path / "other"


def test_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"run: expected a run folder with a recipe\.toml"):
        RunFolder(tmp_path).recipe()
    with pytest.raises(ValueError, match=r"expected result\.json"):
        RunFolder(tmp_path).read("result.json")
    assert RunFolder(tmp_path).read_metrics() == []
