"""Images that are stored compressed, each alone, by zstd with one dictionary for all of a field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError, IntegrityError
from datasets_rl.format.images import ImageColumn
from datasets_rl.read.zstd import ZstdDictionary, decompress


class CompressedImageColumn(ImageColumn):
    """Images of any shape, each a zstd frame; see `ImageColumn`.

    Args:
        data: As in `ImageColumn`.
        ends: As in `ImageColumn`.
        shape: As in `ImageColumn`.
        path: As in `ImageColumn`.
        dictionary: The dictionary that the images were compressed with.
    """

    def __init__(
        self,
        data: NDArray[np.uint8],
        ends: NDArray[np.int64],
        shape: tuple[int, ...],
        path: Path,
        dictionary: ZstdDictionary,
    ) -> None:
        super().__init__(data, ends, shape, path)
        self.dictionary = dictionary

    @override
    def _decode(self, rows: NDArray[np.int64], out: NDArray[np.uint8], positions: NDArray[np.int64]) -> None:
        try:
            decompress(self._data, *self.extents(rows), self.dictionary, out, positions, numbers=rows)
        except ConversionError as error:
            raise IntegrityError(str(self._path), error.problems) from error
