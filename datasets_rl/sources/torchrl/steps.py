"""Which rows of a folder are steps, and in which order: from the length and the cursor of the buffer, and the values.

storage/storage_metadata.json    {"len": 15, ...}       number of elements that were written
writer/metadata.json             {"cursor": 3, ...}     row to write next: of a full buffer the oldest one

Certain evidence is used. Otherwise the folder is refused with the question, and an option of the source answers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import Argument, Call, ConversionError, Remedy
from datasets_rl.read.tensordicts import TensorDictFolder, TensorFile, read_document
from datasets_rl.sources.flat.rings import UNFILLED, UNROLLED
from datasets_rl.sources.rows import rows_in_chunk
from datasets_rl.sources.torchrl.arrays import Piece, TensorDictFile, array_name, batch_problems, batch_shape
from datasets_rl.sources.torchrl.fields import Keys
from datasets_rl.ted.keys import MASK, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key, is_observation

STORAGE = "storage_metadata.json"
WRITER = "metadata.json"
MASKED = "padding-of-trajectories"
IN_FILE_ORDER = "order-of-the-file"
_MASKS: tuple[Key, ...] = (MASK, ("collector", "mask"))
_FLAGS = (NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)
_PLACES = 16
_PAIRS = 1024
"""Number of sequences, and of rows of each, that are compared to find the dimension of time."""
_TIME_NAMES = frozenset({"time"})


@dataclass(frozen=True, slots=True)
class Buffer:
    """What the files beside the tensors state about a replay buffer."""

    length: int | None = None
    """Number of written elements, or None if the folder states none."""
    cursor: int | None = None
    """Row to write next along the first dimension, or None if the folder does not state the row."""
    ranked: bool = False
    """Whether the writer replaces the row of the lowest rank instead of the oldest row."""


def read_buffer(folder: Path, writer: Path | None, name: str) -> Buffer:
    """Return what a folder states about its buffer.

    Args:
        folder: The folder of the tensors.
        writer: The document of the writer, if there is any.
        name: Name of the folder in errors.

    Raises:
        ConversionError: If a document is damaged, or the buffer is not one of a TensorDict.
    """
    length = None
    if (folder / STORAGE).is_file():
        document = read_document(folder / STORAGE, name)
        if document.get("is_pytree"):
            problem = f"{STORAGE} states a storage of tensors without keys"
            raise ConversionError(name, [problem], hint="store the steps as a TensorDict with the keys of TED")
        length = _count(document, "len", STORAGE, name)
    if writer is None:
        return Buffer(length)
    document = read_document(writer, name)
    if "cursor" not in document:
        return Buffer(length)
    return Buffer(length, _count(document, "cursor", f"writer/{WRITER}", name), "rank_key" in document)


def _count(document: Mapping[str, Any], key: str, file: str, name: str) -> int:
    value = document.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConversionError(name, [f"{file} has {key} = {value!r}, expected a number of rows"])
    return value


def choose(option: str, *values: str) -> Remedy:
    """Return the remedy to choose a value of an option of the source."""
    arguments = [Argument("selection", Call("Selection", options={option: value})) for value in values]
    return Remedy("choose with {}" + ", or with {}" * (len(values) - 1), *arguments)


def open_steps(
    folder: TensorDictFolder, buffer: Buffer, keys: Keys, options: Mapping[str, str]
) -> tuple[TensorDictFile, Counter[str]]:
    """Return the steps of a folder in the order of time, and how often each rule was applied.

    Args:
        folder: The folder.
        buffer: What the folder states about its buffer.
        keys: What the keys mean.
        options: The options of the source.

    Raises:
        ConversionError: If the statements contradict each other or the values, or do not show the order of the rows.
    """
    shape = batch_shape(folder)
    if problems := batch_problems(folder, shape):
        raise ConversionError(folder.name, problems)
    rows, is_stated = _written_rows(folder, shape, buffer)
    counts: Counter[str] = Counter()
    if not is_stated:
        rows = _filled_rows(folder, shape, options)
    inner = math.prod(shape[1:])
    counts[UNFILLED] = (shape[0] - rows) * inner
    time = _time_axis(folder, shape, rows, keys, options)
    is_ring = time == 0 and is_stated and rows == shape[0]
    oldest = 0
    if is_ring and options.get("order", "") == "":
        oldest = _oldest_row(folder, shape, buffer)
        counts[UNROLLED] = rows * inner * bool(oldest)
    masks = (folder.tensors[key] for key in _MASKS if key in folder.tensors)
    mask = next((one for one in masks if one.kind == "bool" and one.shape[len(shape) :] in {(), (1,)}), None)
    pieces = _pieces(shape, time, rows, oldest)
    if mask is not None:
        pieces = _without_padding(folder.name, mask, pieces, time)
    file = TensorDictFile(folder, shape, time, [*pieces])
    counts[MASKED] = rows * inner - file.rows if mask is not None else 0
    if is_ring and not oldest and buffer.cursor is None and options.get("order", "") == "" and file.rows:
        _check_wrap(file, keys)
        counts[IN_FILE_ORDER] = file.rows
    if keys.numbers:
        name = array_name(keys.numbers)
        file.mark_starts(name, rows_in_chunk(file.arrays[name].row_bytes))
    return file, counts


def _written_rows(folder: TensorDictFolder, shape: Sequence[int], buffer: Buffer) -> tuple[int, bool]:
    """Return the number of rows of the first dimension that were written, and whether the folder states the number.

    A storage of one dimension counts rows, and a storage of several dimensions counts elements.

    Raises:
        ConversionError: If the length and the cursor do not fit the shape.
    """
    if buffer.length is None:
        return shape[0], False
    inner = math.prod(shape[1:])
    fitting = {
        rows for rows in (buffer.length, buffer.length / max(inner, 1)) if rows <= shape[0] and rows == int(rows)
    }
    if buffer.cursor is not None and not buffer.ranked:
        # The writer of a buffer that is not full is at the row after the last one.
        fitting = {rows for rows in fitting if buffer.cursor == rows or (rows == shape[0] and buffer.cursor < rows)}
    if len(fitting) == 1:
        return int(fitting.pop()), True
    stated = f"{STORAGE} has len = {buffer.length:,}"
    stated += "" if buffer.cursor is None else f", and writer/{WRITER} has cursor = {buffer.cursor:,}"
    problem = f"{stated}, which {'fit the shape in two ways' if fitting else 'do not fit the shape'} {list(shape)}"
    hint = "write the buffer again with dumps, or give the folder above, which has writer/metadata.json"
    raise ConversionError(folder.name, [problem], hint=hint)


def _filled_rows(folder: TensorDictFolder, shape: Sequence[int], options: Mapping[str, str]) -> int:
    """Return the number of rows before the rows at the end that are zeros in all tensors.

    Raises:
        ConversionError: If there are such rows, and no option says what they are.
    """
    if options.get("rows") == "all" or not shape[0] or not folder.tensors:
        return shape[0]
    filled = 0
    for tensor in sorted(folder.tensors.values(), key=lambda one: one.bytes):
        filled = max(filled, _stop_of_values(tensor, filled))
        if filled == shape[0]:
            return filled
    if options.get("rows") == "filled":
        return filled
    problem = (
        f"its last {shape[0] - filled:,} rows of {shape[0]:,} are zeros in every tensor, as rows that were never "
        f"written, and no {STORAGE} states the number of rows"
    )
    raise ConversionError(folder.name, [problem], hint=choose("rows", "filled", "all"))


def _stop_of_values(tensor: TensorFile, first: int) -> int:
    """Return the row after the last row with another value than zero, or `first` if there is none from this row on."""
    values = tensor.stored()
    block = rows_in_chunk(tensor.bytes // max(1, len(values)))
    for stop in range(len(values), first, -block):
        start = max(first, stop - block)
        found = np.flatnonzero(values[start:stop].reshape(stop - start, -1).view(np.uint8).any(axis=1))
        if len(found):
            return start + int(found[-1]) + 1
    return first


def _oldest_row(folder: TensorDictFolder, shape: Sequence[int], buffer: Buffer) -> int:
    if buffer.ranked:
        problem = "a full buffer whose writer keeps the rows of the highest rank has rows in no order of time"
        raise ConversionError(folder.name, [problem], hint=choose("order", "none"))
    return 0 if buffer.cursor is None else buffer.cursor % shape[0]


def _pieces(shape: Sequence[int], time: int, rows: int, oldest: int) -> Iterator[Piece]:
    """Yield the written rows of every sequence, the oldest row first."""
    sizes = [rows if axis == 0 else size for axis, size in enumerate(shape)]
    steps = sizes.pop(time)
    for place in np.ndindex(*sizes):
        yield Piece(place, oldest, steps)
        if oldest:
            yield Piece(place, 0, oldest, is_first=False)


def _without_padding(name: str, mask: TensorFile, pieces: Iterator[Piece], time: int) -> Iterator[Piece]:
    """Yield the rows of the sequences that a mask keeps, which are the first ones.

    Raises:
        ConversionError: If a masked row precedes a row that the mask keeps.
    """
    kept = np.moveaxis(mask.decoded(mask.stored()), time, 0)
    for piece in pieces:
        own = kept[piece.index].reshape(len(piece))
        count = int(own.sum())
        if not own[:count].all():
            row = int(np.argmin(own))
            problem = (
                f"mask is False at row {row:,} of {list(piece.place)}, and True after it, expected padding at the end"
            )
            raise ConversionError(name, [problem])
        yield Piece(piece.place, piece.start, piece.start + count, piece.is_first)


def _time_axis(
    folder: TensorDictFolder, shape: Sequence[int], rows: int, keys: Keys, options: Mapping[str, str]
) -> int:
    """Return the dimension of the batch that counts steps.

    It has a name, or is the only one along which the next states are the states of the following row.

    Raises:
        ConversionError: If no dimension, or several, may count steps.
    """
    if len(shape) == 1:
        return 0
    if stated := options.get("time", ""):
        if int(stated) >= len(shape):
            raise ConversionError(
                folder.name, [f"time is {stated}, but the batch {list(shape)} has {len(shape)} dimensions"]
            )
        return int(stated)
    named = [axis for axis, name in enumerate(folder.axes[: len(shape)]) if name in _TIME_NAMES]
    if len(named) == 1:
        return named[0]
    sizes = [min(rows, shape[0]), *shape[1:]]
    found = [axis for axis in range(len(shape)) if _continues(folder, sizes, axis, keys)]
    if len(found) == 1:
        return found[0]
    fits = "several dimensions" if found else "no dimension"
    problem = f"next has the states of the following rows along {fits} of the batch {list(shape)}: which one counts the steps?"
    raise ConversionError(folder.name, [problem], hint=choose("time", *map(str, range(len(shape)))))


def _continues(folder: TensorDictFolder, sizes: Sequence[int], axis: int, keys: Keys) -> bool:
    """Return whether the states after the first steps along a dimension are the states of the following rows."""
    observed = [key for key in keys.following if is_observation(key)] or [*keys.following]
    observed = [key for key in observed if key in folder.tensors and keys.following[key] in folder.tensors]
    if not observed or sizes[axis] < 2:
        return False
    key = min(observed, key=lambda one: folder.tensors[one].bytes)
    own, after = (np.moveaxis(folder.tensors[one].stored(), axis, 0) for one in (key, keys.following[key]))
    flags = [np.moveaxis(folder.tensors[one].stored(), axis, 0) for one in _FLAGS if one in folder.tensors]
    mask = next((np.moveaxis(folder.tensors[one].stored(), axis, 0) for one in _MASKS if one in folder.tensors), None)
    stop = min(sizes[axis], _PAIRS)
    moves = matches = 0
    places = np.ndindex(*(size for number, size in enumerate(sizes) if number != axis))
    for _, place in zip(range(_PLACES), places, strict=False):
        rows = (slice(stop), *place)
        states, later = (values[rows].reshape(stop, -1) for values in (own, after))
        open_rows = np.ones(stop - 1, np.bool_)
        for flag in flags:
            open_rows &= ~flag[rows].reshape(stop, -1)[:-1].any(axis=1)
        if mask is not None:
            open_rows &= mask[rows].reshape(stop, -1)[1:].any(axis=1)
        changed = (states[1:] != states[:-1]).any(axis=1) & open_rows
        equal = (states[1:] == later[:-1]).all(axis=1) | (_nan_rows(states[1:]) & open_rows)
        moves += int(changed.sum())
        matches += int((equal & changed).sum())
    # The cursor of a ring and the end of a number without a flag interrupt a sequence.
    return moves > 0 and 2 * matches > moves


def _nan_rows(values: NDArray[Any]) -> NDArray[np.bool_]:
    is_nan = np.isnan(values) if values.dtype.kind == "f" else np.zeros(values.shape, np.bool_)
    return np.asarray(is_nan.any(axis=1))


def _check_wrap(file: TensorDictFile, keys: Keys) -> None:
    """Check that the rows of a full buffer without a cursor do not go on at the first row.

    Raises:
        ConversionError: If the last row precedes the first row.
    """
    last, first = np.array([file.rows - 1]), np.array([0])
    pairs = [(array_name(key), array_name(after)) for key, after in keys.following.items() if is_observation(key)]
    flags = [array_name(one.key) for one in keys.fields if one.key in _FLAGS]
    if not pairs or any(file.take(name, last).any() for name in flags):
        return
    if all((file.take(after, last) == file.take(own, first)).all() for own, after in pairs):
        problem = (
            "the next state of the last row is the state of the first row: the rows are those of a ring, and no "
            "writer/metadata.json states the oldest row"
        )
        raise ConversionError(
            file.name, [problem], hint="give the folder above, which dumps has written, with writer/metadata.json"
        )
