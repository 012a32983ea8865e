"""Pages: what is committed is what the committed runs and weights give."""

import shutil
from pathlib import Path

import pytest

from tools.pages import between, write_tables

REPOSITORY = Path(__file__).parents[2]
PAGES = ["results/README.md", "README.md", "docs/which_routing.md", "docs/models.md", "docs/when_routing_helps.md"]


def test_the_committed_pages_are_what_the_committed_runs_give(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    for name in (
        "results/rows.toml",
        "results/looks.csv",
        "results/throughput.csv",
        "results/operations.csv",
        "results/PREFACE.md",
        *PAGES[1:],
    ):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    for name in ("runs", "bench", "when_routing_helps"):
        (tmp_path / "results" / name).symlink_to(REPOSITORY / "results" / name)
    written = [page.relative_to(tmp_path) for page in write_tables(tmp_path / "results")]
    assert [str(page) for page in written] == PAGES
    for page in written:
        assert (tmp_path / page).read_text() == (REPOSITORY / page).read_text(), f"{page}: make the tables again"


def test_everything_outside_the_markers_stays():
    page = "above\n<!-- t: made -->\nold\n<!-- end of t -->\nbelow\n"
    assert between(page, "t", "new\n", Path()) == page.replace("old", "new")


def test_a_page_without_markers_is_named():
    with pytest.raises(ValueError, match=r"page\.md: expected the lines '<!-- t: \.\.\. -->'"):
        between("nothing", "t", "new", Path("page.md"))
