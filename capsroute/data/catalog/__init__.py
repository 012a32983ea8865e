"""The entries of the data set table, one file a family; importing this package registers them all."""

from capsroute.data.catalog import cifar, digits, mnist

__all__ = ["cifar", "digits", "mnist"]
