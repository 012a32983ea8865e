"""The entries of the data set table, one file a family; importing this package registers them all."""

# In the order in which `list_datasets` shows them.
from capsroute.data.catalog import digits, mnist, cifar, svhn, norb, affnist, mnist_variations, sst, generated, scenes  # noqa: I001

__all__ = ["affnist", "cifar", "digits", "generated", "mnist", "mnist_variations", "norb", "scenes", "sst", "svhn"]
