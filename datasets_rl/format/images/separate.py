"""What forms have in common that store separate bytes for each image: the bytes of all images, and the end of each image.

data    | image 0 | image 1    | image 2 |       uint8 [B]
ends              ^ ends[0]    ^ ends[1] ^ ends[2]    int64 [N]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.format.images.base import ArrayFile, FieldWriter, ImageForm, Renumber

if TYPE_CHECKING:
    from datasets_rl.format.reader import StoredDataset

_END: Final = np.dtype(np.int64)


class SeparateForm(ImageForm):
    """Separate bytes for each image, no bytes for an unknown image. See `ImageForm`."""

    @property
    @override
    def item(self) -> tuple[np.dtype[Any], tuple[int, ...]]:
        return _END, ()

    @override
    def array_files(self) -> list[ArrayFile]:
        return [
            file
            for name, per in self.places
            for file in (
                ArrayFile(ends_of(name), _END, (), per),
                ArrayFile(name, self.column.dtype, (), "byte", ends_of(name)),
            )
        ]

    def stored_arrays(
        self, stored: StoredDataset, *, final: bool
    ) -> tuple[NDArray[np.uint8], NDArray[np.int64], tuple[int, ...], Path]:
        """Return the bytes of all images, the end of each, the shape of the pixels, and the file, for a column."""
        name = self.final_file if final else self.file
        return stored.map(name), stored.map(ends_of(name)), self.column.shape, stored.folder / name


class SeparateWriter(FieldWriter):
    """Writer of separate bytes for each image. See `FieldWriter`."""

    def append_images(self, data: NDArray[np.uint8], ends: NDArray[np.int64], *, final: bool) -> None:
        """Append the bytes of images, joined in order, [B], and the end of each image, [n]."""
        name = self.form.final_file if final else self.form.file
        self.streams[ends_of(name)].append(self.streams[name].rows + ends)
        self.streams[name].append(data)

    @override
    def merge(self, folder: Path, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Renumber]:
        # The bytes of the images that were written so far shift all appended ends.
        return {ends_of(name): partial(_shift, self.streams[name].rows) for name, _ in self.form.places}


def ends_of(file: str) -> str:
    """Return the name of the file with the end offset of each image of a file."""
    return f"{file.removesuffix('.npy')}.ends.npy"


def _shift(count: int, ends: NDArray[Any]) -> None:
    ends += count
