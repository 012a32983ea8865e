"""What slots need to train: the same small network and data with one setting changed at a time, over several seeds.

python benchmarks/slot_settings.py --steps 4000 --seeds 3 --out slot_settings.csv
On a GPU every step is replayed as one CUDA graph. Rows hold the foreground ARI on test scenes and the largest norm of
the gradient that was seen at an evaluation.
"""

import argparse
import tempfile

import torch

from capsroute.bench.suites import write_csv
from capsroute.training.slots import fit_slots, load_slot_recipe

# What changes, beside the recipe tetrominoes-cpu: rate 1e-3, 500 steps of warm-up, gradients clipped to norm 1.
SETTINGS = {
    "as the recipe": {},
    "biases of q, k, v": {"attention": {"bias": True}},
    "no warm-up": {"warmup": 1},
    "no clipping": {"clip": 1e9},
    "neither": {"warmup": 1, "clip": 1e9},
    "rate 4e-3": {"learning_rate": 4e-3},
    "rate 4e-3, no warm-up": {"learning_rate": 4e-3, "warmup": 1},
    "rate 4e-3, neither": {"learning_rate": 4e-3, "warmup": 1, "clip": 1e9},
    "rate 4e-3, biases": {"learning_rate": 4e-3, "attention": {"bias": True}},
    "gradient of the last iteration": {"attention": {"stop_gradient": True}},
    "one slot more": {"slots": 5},
}


def recipe_for(changes, steps, seed, count):
    """The recipe tetrominoes-cpu with these changes; `attention` and `slots` are the model's."""
    changes, base = dict(changes), load_slot_recipe("tetrominoes-cpu")
    model = base.model | {name: changes.pop(name) for name in ("attention", "slots") if name in changes}
    graphs = torch.cuda.is_available()
    options = {"steps": steps, "seed": seed, "model": model, "cuda_graphs": graphs, "every": 2.0, "minutes": None}
    scenes = base.data_options | ({} if count is None else {"count": count})
    return base.model_copy(update={**options, "data_options": scenes, **changes})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--scenes", type=int, help="fewer, to try the script")
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--out", default="slot_settings.csv")
    given = parser.parse_args()
    rows = []
    for seed in given.seeds:
        for name in given.settings:
            norms: list[float] = []
            with tempfile.TemporaryDirectory() as folder:
                recipe = recipe_for(SETTINGS[name], given.steps, seed, given.scenes)
                _, result = fit_slots(recipe, folder, say=lambda line, seen=norms: seen.append(float(line.split()[9])))
            rows.append({"setting": name, "seed": seed, "steps": given.steps, "seconds": round(result["seconds"], 1),
                         "error": result["error"], "foreground_ari": round(result["foreground_ari"], 4),
                         "largest_gradient_norm": round(max(norms), 3)})  # fmt: skip
            print(rows[-1], flush=True)
            write_csv(rows, given.out)


if __name__ == "__main__":
    main()
