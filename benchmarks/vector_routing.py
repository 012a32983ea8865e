"""Vector routing of a long sequence, forward and backward, against the form with einsums: peak memory and time.

python benchmarks/vector_routing.py --children 1000000 --features 1024 --parents 100 --out vectors.csv
"""

import argparse
import math
import time

import torch
from torch.nn import functional as F

import capsroute as cr
from capsroute.bench.suites import write_csv


def einsum_form(layer, x):
    """The same mathematics as it is written, every credit stored, for any number of children."""
    n, J = x.shape[1], layer.num_parents
    xs = x / math.sqrt(n)
    f = torch.sigmoid(torch.einsum("bid,d->bi", xs, layer.W_A[0]) + layer.B_A)
    use, ignore = layer.compute_beta_use(x), layer.compute_beta_ign(x)
    R = torch.full((1, 1, J), 1 / J, device=x.device, dtype=x.dtype)
    for t in range(layer.iterations):
        if t > 0:
            predicted = (F.layer_norm(y, (layer.out_features,)) @ layer.W_G1) * layer.W_G2 + layer.B_G2  # noqa: F821
            R = torch.softmax(F.logsigmoid(layer.W_S * torch.einsum("bid,bjd->bij", x, predicted) + layer.B_S), 2)
        used = f.unsqueeze(2) * R
        phi = use * used - ignore * (f.unsqueeze(2) - used)
        y = (torch.einsum("bij,bid->bjd", phi, xs) * layer.W_F1) @ layer.W_F2 + phi.sum(1).unsqueeze(2) * layer.B_F2
    return F.layer_norm(y, (layer.out_features,))


def measure(run, x, layer, repeats):
    gpu = x.device.type == "cuda"
    seconds = []
    for _ in range(repeats + 1):
        x.grad = None
        layer.zero_grad(set_to_none=True)
        if gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        run(x).square().sum().backward()
        if gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    peak = torch.cuda.max_memory_allocated() / 2**30 if gpu else float("nan")
    return min(seconds[1:]), peak


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("children", 1_000_000), ("features", 1024), ("parents", 100), ("repeats", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--out", default="vector_routing.csv")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows = []
    for precision in ("fp32", "tf32"):
        torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
        for needs_grad in (True, False):
            torch.manual_seed(0)
            layer = cr.layers.VectorRouting(None, given.parents, given.features, given.features).to(device)
            x = torch.randn(1, given.children, given.features, device=device, requires_grad=needs_grad)
            forms = {
                "capsroute": lambda x, layer=layer: layer(x).poses,
                "einsum": lambda x, layer=layer: einsum_form(layer, x),
            }
            for name, run in forms.items():
                try:
                    seconds, peak = measure(run, x, layer, given.repeats)
                except torch.OutOfMemoryError:
                    seconds = peak = float("nan")
                rows.append(
                    {"form": name, "precision": precision, "gradient_of_inputs": needs_grad, "children": given.children,
                     "features": given.features, "parents": given.parents, "milliseconds": round(1000 * seconds, 2),
                     "peak_gib": round(peak, 2)}
                )  # fmt: skip
                print(rows[-1], flush=True)
            del x, layer, forms
            if device == "cuda":
                torch.cuda.empty_cache()
    write_csv(rows, given.out)


if __name__ == "__main__":
    main()
