"""What the data room raises: a file that is not what it claims to be, or a data set that no source could deliver."""


class DataError(ValueError):
    """A data file is damaged or not of the expected format; the message names the file, what was found and expected."""


class FetchError(OSError):
    """No source could deliver a data set; the message lists what was tried and what can be done by hand."""


class DataWarning(UserWarning):
    """Something about the data that is not as it should be, and does not stop the work: files that were left out."""
