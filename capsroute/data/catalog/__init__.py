"""The entries of the data set table, one file per family; importing this package registers them all."""

# In the order in which `list_datasets` shows them.
from capsroute.data.catalog import digits, mnist, cifar, svhn, norb, sst, generated  # noqa: I001

__all__ = ["cifar", "digits", "generated", "mnist", "norb", "sst", "svhn"]
