"""`capsroute reproduce PAPER`: run what a table of a paper needs, then make the table again."""

from pathlib import Path
from typing import Annotated

import typer

from capsroute import reproduce

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the subcommand."""

    @app.command("reproduce")
    def command(
        paper: Annotated[str, typer.Argument(help=f"One of: {', '.join(reproduce.PAPERS)}; or all.")],
        row: Annotated[list[str] | None, typer.Option(help="Only rows of this recipe; may be repeated.")] = None,
        overrides: Annotated[list[str] | None, typer.Option("--set", help="Override: training.epochs=5")] = None,
        results: Annotated[Path, typer.Option(help="Where rows.toml and the evidence lie.")] = Path("results"),
        runs: Annotated[Path, typer.Option(help="Where run folders go; an interrupted run goes on.")] = Path("runs"),
        tables_only: Annotated[bool, typer.Option(help="Train nothing: re-make the tables from the evidence.")] = False,
    ) -> None:
        """Train what a paper's table needs (resumable), keep the evidence, and rewrite the table."""
        if paper not in (*reproduce.PAPERS, "all"):
            raise typer.BadParameter(f"expected one of {', '.join(reproduce.PAPERS)} or all, got {paper!r}")
        rows = [r for r in reproduce.load_rows(results / "rows.toml") if paper in (r.paper, "all")]
        rows = [r for r in rows if not row or r.recipe in row]
        if not rows:
            raise typer.BadParameter(f"no row of {paper!r} has a recipe among {row}")
        if not tables_only:
            evidence = reproduce.collect(results)
            for r in rows:
                missing = reproduce.missing_seeds(r, evidence)
                typer.echo(f"{r.name}: {len(missing)} of {r.seeds} seeds to run; {reproduce.estimate(r, evidence)}")
            reproduce.run_missing(rows, evidence, results, runs, overrides or (), typer.echo)
        typer.echo(f"wrote {', '.join(map(str, reproduce.write_tables(results)))}")
