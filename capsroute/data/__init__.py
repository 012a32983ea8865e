"""Data sets of the papers: sources, decoding, device-resident batches, generated sets."""

from capsroute.data import augment, catalog
from capsroute.data.batches import Batches
from capsroute.data.catalog.digit_rules import GeneratedBatches, generate
from capsroute.data.data_files import DataFile, data_root
from capsroute.data.datasets import DatasetInfo, dataset_info, fetch, list_datasets, load, register
from capsroute.data.errors import DataError, DataWarning, FetchError
from capsroute.data.images.arrays import from_arrays, from_dataset
from capsroute.data.images.path import from_folder, from_path
from capsroute.data.sets import ImageSet, TextSet, multi_hot

__all__ = [
    "Batches",
    "DataError",
    "DataFile",
    "DataWarning",
    "DatasetInfo",
    "FetchError",
    "GeneratedBatches",
    "ImageSet",
    "TextSet",
    "augment",
    "catalog",
    "data_root",
    "dataset_info",
    "fetch",
    "from_arrays",
    "from_dataset",
    "from_folder",
    "from_path",
    "generate",
    "list_datasets",
    "load",
    "multi_hot",
    "register",
]
