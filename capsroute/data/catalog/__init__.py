"""The entries of the data set table, one file per family; importing this package registers them all."""

# In the order in which `list_datasets` shows them.
from capsroute.data.catalog import digits, mnist, cifar, svhn, norb, sst, digit_rules, toys, scenes  # noqa: I001

__all__ = ["cifar", "digit_rules", "digits", "mnist", "norb", "scenes", "sst", "svhn", "toys"]
