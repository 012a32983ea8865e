"""Many GPUs.

The same command under torchrun: every process takes its share of each batch, and the result is that of one process with the whole batch.
"""

# %%
# On one machine with four GPUs:
#
#     torchrun --nproc-per-node 4 -m capsroute train sabour-mnist
#
# `training.batch_size` is that of all processes together. `training.sharding=fsdp` shards the weights where they do not fit. Checkpoints are whole: a run of four processes goes on with two.
import capsroute as cr

recipe = cr.training.load_recipe("sabour-mnist", ["training.sharding='fsdp'", "training.device='cuda'"])
print(recipe.training.batch_size, recipe.training.sharding)

# %%
# Inside a loop of your own, layers and models are plain modules: wrap them in `DistributedDataParallel` as any other. A sample's result does not depend on the other samples of its batch, so nothing has to be shared but gradients (and batch normalisation, if there is any).
