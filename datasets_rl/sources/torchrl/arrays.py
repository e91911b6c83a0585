"""A folder of tensordict as a file of flat rows: the steps of each sequence in the order of time, one sequence after the other.

[15]              a sequence
[15], a ring      rows 6 to 14, and then rows 0 to 5, if row 6 is the oldest one
[10, 4]           4 sequences, of the batch dimension 1, if time is dimension 0
[4, 10]           4 sequences, of the batch dimension 0, if time is dimension 1
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.read.tensordicts import TensorDictFolder, TensorFile
from datasets_rl.sources.flat.arrays import TEXT, Array, ArrayFile, Rows
from datasets_rl.ted.keys import Key

STARTS = "first rows"
"""Name of the mask of the first rows of sequences and of the episodes that numbers mark. No key of a tensor has a space."""

_Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Successive rows of a sequence."""

    place: tuple[int, ...]
    """Where the sequence is in the batch dimensions other than time."""
    start: int
    stop: int
    is_first: bool = True
    """Whether the piece begins a sequence."""

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def index(self) -> tuple[Any, ...]:
        """Index of the rows in an array with time as the first axis."""
        return (slice(self.start, self.stop), *self.place)


class TensorDictFile(ArrayFile):
    """The tensors and the texts of a folder as arrays with a row for each step, named as the keys with slashes.

    Args:
        folder: The folder.
        shape: Shape of the batch.
        time: Dimension of the batch that counts the steps.
        pieces: The rows of the sequences, in order.
    """

    def __init__(self, folder: TensorDictFolder, shape: Sequence[int], time: int, pieces: Sequence[Piece]) -> None:
        self.name, self._time = folder.name, time
        self._pieces = [piece for piece in pieces if len(piece)]
        self._stops = np.cumsum([len(piece) for piece in self._pieces], dtype=np.int64)
        rows = int(self._stops[-1]) if len(self._stops) else 0
        self._tensors = {array_name(key): tensor for key, tensor in folder.tensors.items()}
        self._texts = {array_name(key): values for key, values in folder.texts.items()}
        axes = len(shape)
        self.arrays: dict[str, Array] = {
            name: Array(rows, tensor.shape[axes:], tensor.dtype) for name, tensor in self._tensors.items()
        }
        self.arrays |= {name: Array(rows, (), TEXT, text=True) for name in self._texts}
        self._starts: NDArray[np.bool_] = np.zeros(rows, np.bool_)
        self._starts[[stop - len(piece) for piece, stop in self._own() if piece.is_first]] = True
        self.arrays[STARTS] = Array(rows, (), np.dtype(np.bool_))

    @property
    def rows(self) -> int:
        """Number of steps."""
        return len(self._starts)

    def mark_starts(self, name: str, rows: int) -> None:
        """Mark the rows at which the number of the episode changes as first rows.

        Args:
            name: The array of the numbers.
            rows: Number of rows of a block.
        """
        last, at = None, 0
        for block in self.blocks(name, rows):
            numbers = np.asarray(block).reshape(len(block), -1)
            before = numbers[:1] if last is None else last
            self._starts[at : at + len(numbers)] |= (numbers != np.concatenate([before, numbers[:-1]])).any(axis=1)
            last, at = numbers[-1:], at + len(numbers)

    @override
    def blocks(self, name: str, rows: int) -> Iterator[Rows]:
        if name == STARTS:
            yield from (self._starts[start : start + rows] for start in range(0, self.rows, rows))
            return
        values, tensor = self._values(name)
        for piece, _ in self._own():
            own = values[piece.index]
            for start in range(0, len(piece), rows):
                block = own[start : start + rows]
                yield block.tolist() if tensor is None else tensor.decoded(block)

    def take(self, name: str, rows: _Index) -> NDArray[Any]:
        """Return some rows of a tensor, [n, ...]. `rows` ascend."""
        values, tensor = self._values(name)
        array = self.arrays[name]
        taken = np.empty((len(rows), *array.shape), array.dtype)
        owners = np.searchsorted(self._stops, rows, "right")
        for number in np.unique(owners).tolist():
            piece, mine = self._pieces[number], owners == number
            inside = rows[mine] - int(self._stops[number]) + piece.stop
            block = values[(slice(None), *piece.place)][inside]
            taken[mine] = block if tensor is None else tensor.decoded(block)
        return taken

    def _own(self) -> Iterator[tuple[Piece, int]]:
        yield from zip(self._pieces, self._stops.tolist(), strict=True)

    def _values(self, name: str) -> tuple[NDArray[Any], TensorFile | None]:
        """Return the stored values of an array with time as the first axis, and the file of a tensor."""
        tensor = self._tensors.get(name)
        values = self._texts[name] if tensor is None else tensor.stored()
        return np.moveaxis(values, self._time, 0), tensor

    def __exit__(self, *details: object) -> None: ...


def array_name(key: Key) -> str:
    """Return the name of the array of a key."""
    return "/".join(key)


def batch_problems(folder: TensorDictFolder, shape: Sequence[int]) -> list[str]:
    """Return which tensors and texts do not begin with the shape of the batch."""
    shapes: Mapping[Key, tuple[int, ...]] = {
        **{key: tensor.shape for key, tensor in folder.tensors.items()},
        **{key: values.shape for key, values in folder.texts.items()},
    }
    axes = len(shape)
    return [
        f"{'.'.join(key)} has shape {list(own)}, expected the shape of the batch {list(shape)} first"
        for key, own in shapes.items()
        if own[:axes] != tuple(shape)
    ]


def batch_shape(folder: TensorDictFolder) -> tuple[int, ...]:
    """Return the shape of the batch of a folder. Without a batch size, all tensors have a row for each step.

    Raises:
        ConversionError: If a folder without a batch size has tensors with other numbers of rows.
    """
    if folder.shape:
        return folder.shape
    rows = {tensor.shape[:1] for tensor in folder.tensors.values()}
    if len(rows) == 1 and () not in rows:
        return next(iter(rows))
    shown = ", ".join(f"{'.'.join(key)} {list(tensor.shape)}" for key, tensor in [*folder.tensors.items()][:5])
    problem = f"it has no batch size, and its tensors have different numbers of rows: {shown or 'none'}"
    raise ConversionError(
        folder.name, [problem], hint="state the batch size where the folder was written: batch_size=[N]"
    )
