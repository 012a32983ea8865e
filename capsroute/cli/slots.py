"""`capsroute slots`: train a slot autoencoder on scenes of several objects, judged by the foreground ARI."""

from pathlib import Path
from typing import Annotated

import typer

from capsroute.cli.failures import explained


def slots(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="tetrominoes, shapes, tetrominoes-cpu, or a TOML file.")
    ] = "tetrominoes-cpu",
    out: Annotated[Path | None, typer.Option("--out", help="Folder; otherwise a free runs/slots-RECIPE.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="At most so many steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="The schedule ends by then.")] = None,
    seed: Annotated[int, typer.Option(help="Of the weights and of the scenes.")] = 0,
    eager: Annotated[bool, typer.Option("--eager", help="Neither compile nor record steps.")] = False,
) -> None:
    """Train slots without labels; metrics.csv, result.json, the weights and a picture of what each slot draws."""
    from capsroute.analysis import draw_slots, save_figure
    from capsroute.training.run_folder import choose_folder
    from capsroute.training.slots import SlotRun, load_slot_recipe

    with explained():
        changes: dict = {"seed": seed} | ({} if steps is None else {"steps": steps})
        changes |= {} if minutes is None else {"minutes": minutes}
        changes |= {"compile": False, "cuda_graphs": False} if eager else {}
        chosen = load_slot_recipe(recipe, **changes)
        run = SlotRun(chosen)
        folder = out or choose_folder(f"slots-{chosen.name}")
        result = run.run(folder, typer.echo)
        shown = run.sets["test"].images[:8].float() / 255
        save_figure(draw_slots(run.model, shown), folder / "slots")
        typer.echo(
            f"foreground ARI {result['foreground_ari']:.4f} on test scenes, {result['steps']} steps, in {folder}"
        )
