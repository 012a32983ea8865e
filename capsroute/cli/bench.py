"""`capsroute bench`: time, memory and error of every algorithm against the textbook form, on this machine."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from capsroute.bench.measure import DTYPES
from capsroute.bench.suites import SUITES, run_suite

Suite = Annotated[str | None, typer.Argument(help=f"One of {', '.join(SUITES)}. Default: paper on a GPU, else small.")]
Device = Annotated[str | None, typer.Option(help="cuda or cpu. Default: a GPU where there is one.")]
Dtype = Annotated[
    str | None,
    typer.Option(help="Which dtypes, with commas between them. Default: float32,bfloat16; on a CPU float32 alone."),
]
Out = Annotated[Path, typer.Option(help="Where the CSV and the plot go.")]
Compile = Annotated[bool, typer.Option(help="Measure the textbook form under torch.compile, too.")]
Jobs = Annotated[int, typer.Option(help="Measure a grid with this many processes, which compile at the same time.")]
Only = Annotated[str, typer.Option(help="Only what has one of these texts in its name: 'em|capsnet'.")]


def bench(
    suite: Suite = None, device: Device = None, dtype: Dtype = None, out: Out = Path("results/bench"),
    compile: Compile = True, jobs: Jobs = 0, only: Only = "",
) -> None:  # fmt: skip
    """Measure capsroute against the textbook form, eager and compiled, in one process on the same tensors."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    suite = suite or ("paper" if device == "cuda" else "small")
    known = ["float32"] if device == "cpu" else list(DTYPES)
    names = known[:2] if dtype is None else dtype.split(",")
    if suite not in SUITES or device not in ("cuda", "cpu") or not set(names) <= set(known):
        raise typer.BadParameter(
            f"expected a suite of {', '.join(SUITES)}, a device of cuda, cpu and dtypes of {', '.join(known)}; "
            f"got {suite}, {device}, {','.join(names)}"
        )
    run_suite(suite, device, names, out, compile, only, jobs, say=typer.echo)
