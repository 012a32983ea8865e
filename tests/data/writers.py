"""Small files in the original formats of the data sets, written independently of the code that reads them."""

import gzip
import io
import struct
import tarfile
import zipfile

import numpy as np
from PIL import Image
from scipy.io import savemat


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def cifar(images: np.ndarray, *labels: np.ndarray) -> bytes:
    rows = [bytes(row) for row in zip(*(column.tolist() for column in labels))]
    return b"".join(row + image.astype(np.uint8).tobytes() for row, image in zip(rows, images))


def png(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, format="PNG")
    return stream.getvalue()


def mat(variables: dict) -> bytes:
    stream = io.BytesIO()
    savemat(stream, variables, do_compression=True)
    return stream.getvalue()


def svhn(images: np.ndarray, labels: np.ndarray) -> bytes:
    """`images` [n, 32, 32, 3]; a digit 0 is stored as label 10."""
    stored = np.where(labels == 0, 10, labels).astype(np.uint8)
    return mat({"X": images.transpose(1, 2, 3, 0), "y": stored[:, None]})


def affnist(images: np.ndarray, labels: np.ndarray) -> bytes:
    """`images` [n, 40, 40]."""
    return mat(
        {"affNISTdata": {"image": images.reshape(len(images), -1).T, "label_int": labels[None].astype(np.uint8)}}
    )


def norb(array: np.ndarray) -> bytes:
    magic = {"uint8": 0x1E3D4C55, "int32": 0x1E3D4C54}[array.dtype.name]
    sizes = (*array.shape, 1, 1)[: max(array.ndim, 3)]
    return struct.pack(f"<ii{len(sizes)}i", magic, array.ndim, *sizes) + array.tobytes()


def amat(images: np.ndarray, labels: np.ndarray) -> bytes:
    """`images` [n, 784] of floats."""
    rows = np.concatenate([images, labels[:, None]], axis=1)
    return "".join(" ".join(f"{value:.7g}" for value in row) + " \n" for row in rows).encode()


def tar(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as archive:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def zip_(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def gz(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
