"""Whole training steps in a loop of one's own: eager, as a CUDA graph, compiled too; and how much of them is routing.

PYTHONPATH=. python3 benchmarks/steps.py results/bench/steps-cuda.csv
PYTHONPATH=. python3 benchmarks/steps.py steps.csv --models capsnet --ways eager --batch 4 --device cpu     a trial

Beside each network as it is stands the same one with equal coefficients (`routing="uniform"`): its capsule layers are
linear layers and their activation, so the difference is what routing costs. Each measurement has a process of its own.
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

import capsroute as cr
from capsroute.bench.measure import append_row

MODELS = ("capsnet", "tsai_resnet_cifar10")
WAYS = ("eager", "graph", "graph, compiled")
FIELDS = ("model", "routing", "way", "batch", "dtype", "step_ms", "lowest_ms", "highest_ms")


def loss(model: torch.nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Margin loss and reconstruction where there is a decoder, cross-entropy otherwise."""
    output = model(images, labels)
    scores = output.scores.float()
    if output.reconstruction is None:
        return F.cross_entropy(scores, labels)
    return cr.losses.margin(scores, labels) + cr.losses.reconstruction(output.reconstruction.float(), images, 0.0005)


def measure(name: str, routing: str, way: str, batch: int, device: str) -> dict[str, object]:
    """Milliseconds of a step in bfloat16: forward, loss, backward, Adam; the median of five rounds."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    options = {} if routing == "as it is" else {"routing": routing}
    model = cr.training.channels_last(cr.create_model(name, **options).to(device)).train()
    shape = [side or 1 for side in model.input_shape]
    # `contiguous` would leave one channel as it is, and a convolution's backward pass reorder gradients for that.
    images = torch.rand(batch, *shape, device=device).to(memory_format=torch.channels_last)
    labels = torch.randint(model.num_classes, (batch,), device=device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    run = torch.compile(model) if "compiled" in way else model

    def eager(images: Tensor, labels: Tensor) -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            value = loss(run, images, labels)
        value.backward()
        optimiser.step()

    step = eager
    if "graph" in way:
        step = cr.training.graphed_step(run, loss, optimiser, (images, labels), autocast=torch.bfloat16)
    settle = torch.cuda.synchronize if device == "cuda" else lambda: None
    steps, times = (50, []) if device == "cuda" else (2, [])
    for _ in range(8 if device == "cuda" else 1):
        step(images, labels)
    for _ in range(5):
        settle()
        began = time.perf_counter()
        for _ in range(steps):
            step(images, labels)
        settle()
        times.append(1e3 * (time.perf_counter() - began) / steps)
    if getattr(step, "reason", None):
        raise RuntimeError(f"no graph: {step.reason}")
    return dict(zip(FIELDS, (name, routing, way, batch, "bfloat16", statistics.median(times), min(times), max(times))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--routings", nargs="+", default=["as it is", "uniform"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=60, help="for each measurement")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        row = measure(given.models[0], given.routings[0], given.ways[0], given.batch, given.device)
        append_row(row, given.out, given.device)
        print(", ".join(map(str, list(row.values())[:3])), f"{row['step_ms']:.3f} ms", flush=True)
        return
    for way in given.ways:  # what takes longest to compile comes last
        for name in given.models:
            for routing in given.routings:
                again = ["--models", name, "--routings", routing, "--ways", way, "--batch", str(given.batch)]
                command = [sys.executable, __file__, str(given.out), *again, "--device", given.device, "--alone"]
                try:
                    subprocess.run(command, timeout=given.seconds, check=True)
                except (subprocess.TimeoutExpired, subprocess.CalledProcessError) as error:
                    print(f"{way}, {name}, {routing}: {error}", flush=True)


if __name__ == "__main__":
    main()
