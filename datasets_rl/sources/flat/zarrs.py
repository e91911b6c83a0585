"""Stores of zarr as files of arrays: a folder, or a zip file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.streams import first_problems
from datasets_rl.read.zarr_paths import MARKERS
from datasets_rl.read.zarr_store import ZarrStore
from datasets_rl.sources.flat.arrays import Array, ArrayFile
from datasets_rl.sources.flat.names import usual_keys
from datasets_rl.sources.flat.replay_buffers import ENDS
from datasets_rl.ted.keys import ACTION, Key, is_observation

_BLOCK_BYTES = 64 << 20
"""Bytes up to which a block has all rows of the chunks it needs."""
_EMPTY_HINT = (
    "copy the store again. If the values of the chunk are the fill value, {}, with zarr 3 after "
    "zarr.config.set({{'array.write_empty_chunks': True}})"
)


_NO_KEY: Key = ("",)


class ZarrFile(ArrayFile):
    """Open store of zarr.

    Args:
        path: The zip file, or the file of metadata in the folder of the store.
        name: Name of the file in errors.

    Raises:
        ConversionError: If the store is damaged, or the folder is a group within a store.
    """

    def __init__(self, path: Path, name: str) -> None:
        folder = path.parent if path.name in MARKERS else path
        self.name = name if folder == path else folder.name
        if folder != path:
            _check_root(folder)
        self._store = ZarrStore(folder, self.name)
        try:
            self._describe()
        except BaseException:
            self._store.__exit__()
            raise

    def _describe(self) -> None:
        arrays = self._store.arrays
        self.arrays = {
            name: Array(array.shape[0], array.shape[1:], array.dtype) for name, array in arrays.items() if array.shape
        }
        if all(name.startswith("data/") for name in self.arrays):
            self.absent_marks = ENDS
        self._keys = usual_keys(self.arrays)
        self._check_chunks()
        self.unwritten = sum(array.missing for name, array in arrays.items() if self._may_be_blank(name))
        self.scalars = {
            name: self._store.read(name, 0, 1)
            for name, array in arrays.items()
            if not array.shape and not array.dtype.hasobject and self._store.refusal(name) is None
        }

    @override
    def blocks(self, name: str, rows: int) -> Iterator[NDArray[Any]]:
        array = self._store.arrays[name]
        if refusal := self._refusal(name):
            raise refusal
        size = array.rows_of_chunk
        if size * array.row_bytes <= _BLOCK_BYTES:
            rows = max(size, rows // size * size)
        for start in range(0, array.shape[0], rows):
            yield self._store.read(name, start, min(start + rows, array.shape[0]))

    def _check_chunks(self) -> None:
        """Check that no array is cut, and that no array with a usual name lacks chunks.

        Raises:
            ConversionError: If so. The error names every such array.
        """
        arrays = self._store.arrays
        names = {name for name, array in arrays.items() if array.beyond} | self._keys.keys()
        refusals = [refusal for name in arrays if name in names and (refusal := self._refusal(name))]
        if refusals:
            problems = [problem for refusal in refusals for problem in refusal.problems]
            raise ConversionError(self.name, first_problems(problems), hint=refusals[0].remedy)

    def _refusal(self, name: str) -> ConversionError | None:
        """Return the error about an array that cannot be read, or of which chunks are missing that may be lost, or None."""
        array = self._store.arrays[name]
        refusal = self._store.refusal(name)
        if refusal is not None or not array.missing or self._may_be_blank(name) or array.dtype.hasobject:
            return refusal
        first, last = array.first_missing()
        problem = (
            f"{name} lacks {array.missing:,} of {array.missing + array.count:,} chunks, the first of rows {first:,} to "
            f"{last - 1:,}. zarr reads such rows as the fill value {array.metadata['fill_value']}"
        )
        return ConversionError(self.name, [problem], hint=_EMPTY_HINT.format(self._store.rewriting(name)))

    def _may_be_blank(self, name: str) -> bool:
        """Return whether a whole chunk of an array may well be the fill value: a number in each row, such as a reward."""
        array, key = self._store.arrays[name], self._keys.get(name, _NO_KEY)
        is_number = array.shape[1:] in {(), (1,)} and not array.dtype.hasobject
        return is_number and key[:1] != ACTION and not is_observation(key)

    def __exit__(self, *details: object) -> None:
        self._store.__exit__(*details)


def _check_root(folder: Path) -> None:
    """Check that a folder is not a group of a larger store, whose ends of episodes would be left out.

    Raises:
        ConversionError: If the folder is a group.
    """
    above = folder.parent
    sibling = {"data": "meta", "meta": "data"}.get(folder.name)
    if any((above / name).is_file() for name in MARKERS) or (sibling and (above / sibling).is_dir()):
        raise ConversionError(
            folder.name, [f"the folder is a group of the store {above.name}"], hint=f"give the store, {above.name}"
        )
