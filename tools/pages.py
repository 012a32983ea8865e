"""The pages that hold tables, written again from evidence: `results/README.md`, and parts of two others."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from capsroute.files import write_atomically
from capsroute.models import Pretrained, load_model, model_card, pretrained_weights
from experiments.figures import constellations_table, viewpoints_table
from experiments.readout import table as readout_table
from tools.evidence import collect, count_looks
from tools.rows import all_rows
from tools.tables import render, render_main
from tools.throughput import read_speeds


def write_tables(results: str | Path) -> list[Path]:
    """Re-make `README.md` of a results folder from its `rows.toml`, its `PREFACE.md` and its committed runs.

    Where the folder lies in a repository, the main rows go into the README above it, and the table of trained weights
    into `docs/models.md`. The pages that were written come back.
    """
    results = Path(results)
    rows, evidence, looks = all_rows(results / "rows.toml"), collect(results), count_looks(results)
    speeds = read_speeds(results / "throughput.csv")
    preface = (results / "PREFACE.md").read_text(encoding="utf-8")
    pages = {results / "README.md": preface.rstrip() + "\n\n" + render(rows, evidence, looks, speeds)}
    for page, part, table in (
        (results.parent / "README.md", "results", render_main(rows, evidence)),
        (results.parent / "docs" / "which_routing.md", "costs", costs_table(results / "bench" / "paper-cuda.csv")),
        (results.parent / "docs" / "models.md", "pretrained", weights_table(pretrained_weights())),
    ):
        if page.is_file():
            pages[page] = between(page.read_text(encoding="utf-8"), part, table, page)
    helps = results.parent / "docs" / "when_routing_helps.md"
    tables = {"constellations": constellations_table, "viewpoints": viewpoints_table, "readout": readout_table}
    for part, make in tables.items():
        evidence_of = results / "when_routing_helps" / f"{part}.csv"
        if helps.is_file() and evidence_of.is_file():
            text = pages.get(helps) or helps.read_text(encoding="utf-8")
            pages[helps] = between(text, part, make(evidence_of), helps)
    for weights in pretrained_weights():
        card = results.parent / "capsroute" / "pretrained" / weights.tag / "README.md"
        if card.parent.is_dir():
            pages[card] = model_card(load_model(weights.folder), weights, weights.tag)
    for page, text in pages.items():
        write_atomically(page, text.encode())
    return list(pages)


def between(text: str, part: str, table: str, page: Path) -> str:
    """A page with another table between `<!-- PART: ... -->` and `<!-- end of PART -->`.

    >>> from pathlib import Path
    >>> from tools.pages import between
    >>> between("<!-- t: made -->\\nold\\n<!-- end of t -->", "t", "new", Path("page.md")).splitlines()
    ['<!-- t: made -->', 'new', '<!-- end of t -->']
    """
    pattern = re.compile(rf"(<!-- {part}:[^\n]*-->\n).*?(<!-- end of {part} -->)", re.DOTALL)
    if len(pattern.findall(text)) != 1:
        raise ValueError(f"{page}: expected the lines '<!-- {part}: ... -->' and '<!-- end of {part} -->' once")
    return pattern.sub(lambda found: found[1] + table.rstrip() + "\n" + found[2], text)


def costs_table(path: Path) -> str:
    """A benchmark's float32 cases, a line each: ours, the compiled textbook form, their ratio."""
    lines = ["| layer | capsroute | textbook, compiled | |", "|" + "---|" * 4]
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] == "float32" and row["graph_step_ms"]]
    found = {(row["case"], row["implementation"]): row for row in rows}
    for case in dict.fromkeys(row["case"] for row in rows):
        ours, theirs = found.get((case, "capsroute")), found.get((case, "textbook compiled"))
        if ours and theirs:
            times = [float(row["graph_step_ms"]) for row in (ours, theirs)]
            cells = [f"{t:.2f} ms, {float(row['peak_mib']):.0f} MiB" for t, row in zip(times, (ours, theirs))]
            lines.append(f"| {case} | {cells[0]} | {cells[1]} | {times[1] / times[0]:.1f}x |")
    return "\n".join(lines) + "\n"


def weights_table(entries: Sequence[Pretrained]) -> str:
    """Trained weights of the package, a line each."""
    lines = [
        "| model | tag | data | parameters | routing: the run / as stored | stored, bytes | made by |",
        "|" + "---|" * 7,
    ]
    for entry in entries:
        size = sum((entry.folder / name).stat().st_size for name in entry.files)
        cells = [
            f"`{entry.model}`",
            f"`{entry.tag}`",
            entry.data,
            f"{entry.parameters:,}",
            _accuracies(entry),
            f"{entry.stored}, {size:,}",
            f"`{entry.command}`, seed {entry.seed}, {entry.train_seconds:.0f} s on {entry.hardware}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _accuracies(entry: Pretrained) -> str:
    check = entry.check
    said = [
        f"{routing.replace('_', ' ')} {measured:.2f} / {check['stored'][routing]:.2f}"
        for routing, measured in entry.accuracy.items()
        if routing in check["stored"]
    ]
    return f"{', '.join(said)} (n = {check['images']:,}; own weights {check['float32']:.2f})"
