"""Looking inside.

Coefficients, poses and what routing changed: numbers first, pictures second.
"""

# %%
# A run to look into: seconds of training on real digits.
import tempfile
from pathlib import Path

import capsroute as cr

folder = Path(tempfile.mkdtemp()) / "run"
quick = ["training.epochs=3", "evaluation.pictures=false"]
recipe = cr.training.load_recipe("quickstart", quick)
run = cr.training.fit(None, None, recipe, folder, reporter=cr.training.SilentReporter())

# %%
# The three ways to read it: as trained, with master coefficients averaged over the training set, with uniform ones.
for name, facts in run.result["test"].items():
    print(f"{name}: {facts['accuracy']:.2%}")

# %%
# Coefficients of a batch: how far from equal is each child's row?
images = cr.data.load("digits", "test").images[:100].float() / 255
output = run.model.eval()(images, return_coefficients=True)
coefficients = next(iter(output.coefficients.values()))  # [b,i,j]
print("children, parents:", list(coefficients.shape[1:]), "largest coefficient:", round(coefficients.max().item(), 3))

# %%
# Every figure of a run, as pictures and a page: `capsroute figures RUN`. In the browser, live: `capsroute explore RUN`.
