"""The papers' tables again: which runs a table needs, what they gave, and the table made of that."""

from capsroute.reproduce.bundling import bundle
from capsroute.reproduce.evidence import Evidence, collect, keep
from capsroute.reproduce.pages import write_tables
from capsroute.reproduce.rows import PAPERS, Row, load_rows
from capsroute.reproduce.running import estimate, missing_seeds, run_missing
from capsroute.reproduce.tables import render

__all__ = [
    "PAPERS",
    "Evidence",
    "Row",
    "bundle",
    "collect",
    "estimate",
    "keep",
    "load_rows",
    "missing_seeds",
    "render",
    "run_missing",
    "write_tables",
]
