"""Names and shapes of the arrays in a file, read from a few bytes of the file."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import BinaryIO

from datasets_rl.errors import ConversionError
from datasets_rl.libraries import raise_fault_of_code

_NAMES_MAX = 64
_CHILDREN_MAX = 8

Outline = dict[str, "list[int] | None"]


def outline(stream: BinaryIO) -> Outline:
    """Return the shape of each array by name, and None for each group, with a name that ends with a slash.

    Of an HDF5 file, the first 64 names at the root are returned, and for each group the first 8 names in the group. No
    link to another file is followed.

    Raises:
        ConversionError: If the stream is neither an HDF5 nor an npz file, or the directory is damaged.
    """
    head = stream.read(64)
    stream.seek(0)
    if head.startswith(b"PK"):
        from datasets_rl.read.npz import NpzFile

        with NpzFile(stream) as file:
            return {name: list(array.shape) for name, array in file.arrays.items()}
    import h5py

    from datasets_rl.read.hdf5 import LIBRARY_ERRORS, MAGIC
    from datasets_rl.read.streams import AGAIN, unexpected_format

    if not head.startswith(MAGIC):
        raise ConversionError("the file", [unexpected_format(head, "an HDF5 or npz file")], hint=AGAIN)
    try:
        with h5py.File(stream, "r") as opened:
            return dict(_names(opened, "", _NAMES_MAX))
    except LIBRARY_ERRORS as error:
        raise_fault_of_code(error, "the file")
        raise ConversionError("the file", [f"the directory is damaged or truncated: {error}"], hint=AGAIN) from error


def _names(group: object, above: str, most: int) -> Iterator[tuple[str, list[int] | None]]:
    """Yield the names in a group, and the names of one more level in the groups."""
    import h5py

    if not isinstance(group, h5py.Group):
        return
    for name in itertools.islice(group, most):
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            continue
        child = group[name]
        if isinstance(child, h5py.Dataset):
            yield f"{above}{name}", list(child.shape or ())
        else:
            yield f"{above}{name}/", None
            if not above:
                yield from _names(child, f"{name}/", _CHILDREN_MAX)
