"""Reader of Gen-DGRL's archives, in which each file is an episode.

observations   o_0  o_1  ...  o_T-1  | o_T            o_T is the first frame of the next level, after Procgen's reset
actions        a_0  a_1  ...  a_T-1
rewards        r_0  r_1  ...  r_T-1                   r_t is the reward for a_t
dones          0    0    ...  1

A file is an ``.npz``, or a dict that numpy pickled, as the first bytes show. Frames are floats from 0 to 255.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read import npy, zips
from datasets_rl.read.archive import Member, members_of_chunk
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.pickles import load_npy
from datasets_rl.read.streams import AGAIN, JoinedStream, fill, unexpected_format
from datasets_rl.sources.base import NO_TRANSITION, EpisodeReader
from datasets_rl.sources.values import pixel_spec
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION

_NAME = re.compile(r"(\d{8})T(\d{6})_(\d{1,18})_(\d{1,9})_(-?\d{1,18})_(-?\d{1,15}(?:\.\d+)?)\.np[yz]", re.ASCII)
_FRAME = (3, 64, 64)
_ACTIONS = 15
_BLOCK_ROWS = (8 << 20) // (4 * 3 * 64 * 64)
_FILE_MAX_BYTES = 1 << 30  # 20 times what an episode of 1,000 steps has
_STEPS_MAX = _FILE_MAX_BYTES // (4 * 3 * 64 * 64)
_RETURN_TOLERANCE = 0.01  # names have two digits
_COLUMNS = (
    Column(OBSERVATION, np.dtype(np.uint8), _FRAME, shared=True),
    Column(ACTION, np.dtype(np.int64), (1,)),
    Column(NEXT_REWARD, np.dtype(np.float32), (1,)),
    *END_COLUMNS,
)
_EXPECTED: Mapping[str, tuple[int, str, tuple[int, ...]]] = {
    "observations": (1, "fu", _FRAME),
    "actions": (0, "iu", (1,)),
    "rewards": (0, "f", (1,)),
    "dones": (0, "biuf", ()),
}
"""By name: the number of rows in addition to the steps, the allowed dtype kinds, and the shape of a row."""
_TEXTS = {
    "alien-last-frame": "the last frame of an episode is the first frame of the next level and was left out, and the state "
    "after the last step is not known",
    "terminated": "the end flag of episodes does not distinguish a time limit from a termination: the ends were marked "
    "terminated",
    "frames-cast": "frames are stored as floats with integer values, and were converted to uint8",
    **NO_TRANSITION,
    "flags-cast": "files store flags as numbers, 0 or 1, which were converted to booleans",
}


class GenDGRLReader(EpisodeReader):
    """Reader of an archive. A part is a pair (k, n), the k-th of n parts.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The archive, by path.
        facts: ``games``: all games, with True for the game of the dataset.
    """

    rules = _TEXTS

    columns = _COLUMNS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._dataset_id = dataset_id
        (self._path,) = map(Path, files.values())
        self._games: Mapping[str, bool] = facts["games"]

    @override
    def specs(self) -> Mapping[str, Any]:
        return {
            "observation": pixel_spec(_FRAME),
            "action": {"kind": "bounded", "shape": [1], "dtype": "int64", "low": 0, "high": _ACTIONS - 1},
        }

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of the game that begin in a part of the archive, or by default all episodes of the game."""
        self.counts.clear()
        for member in members_of_chunk(self._path, *(part or (0, 1))):
            path = PurePosixPath(member.name)
            # An archive of one game may have no folder of that name. Files in the folder of another game are skipped.
            if path.name.startswith(".") or not all(self._games.get(folder, True) for folder in path.parts[:-1]):
                continue
            yield from self._read_episode(path.name, member)

    def _read_episode(self, name: str, member: Member) -> Iterator[Episode]:
        match = _NAME.fullmatch(name)
        if match is None:
            raise self.error(name, ["the name is not <time>_<episode>_<length>_<level seed>_<return>.npy"])
        date, time, number, length, seed, total = match.groups()
        if not int(length):
            self.counts["no-transition"] += 1
            return
        try:
            file = _open_arrays(name, member)
            self.refuse(name, _shape_problems(file, int(length)))
            action, reward, done = (file.read(array) for array in ("actions", "rewards", "dones"))
        except ConversionError as error:
            raise self.error(name, [problem.removeprefix(f"{name}: ") for problem in error.problems]) from None
        steps = len(action)
        self.refuse(name, _value_problems(action, reward, done.reshape(-1), float(total)))
        self.counts["alien-last-frame"] += 1
        self.counts["terminated"] += 1
        self.counts["frames-cast"] += file.stored["observations"][1] != "u"
        self.counts["flags-cast"] += done.dtype.kind != "b"
        ends = done.reshape(-1, 1) == 1
        columns = {
            ACTION: action.astype(np.int64).reshape(steps, 1),
            NEXT_REWARD: reward.astype(np.float32).reshape(steps, 1),
            NEXT_TERMINATED: ends,
            NEXT_TRUNCATED: np.zeros_like(ends),
        }
        metadata: dict[str, Any] = {
            "saved": np.int64(date + time),
            "number": np.int64(number),
            "level_seed": np.int64(seed),
            "stated_return": np.float64(total),
        }
        if OBSERVATION not in self.kept:
            yield Episode(columns, {}, metadata=metadata)
            return
        for start, frames in self._frame_blocks(name, file):
            stop = min(start + len(frames), steps)
            if start < stop:
                rows = {key: values[start:stop] for key, values in columns.items()}
                yield Episode(rows, {OBSERVATION: frames[: stop - start]}, stop < steps, metadata)

    def _frame_blocks(self, name: str, file: _Arrays) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield frames as uint8 in blocks, with the first row of each."""
        start = 0
        for block in file.blocks("observations", _BLOCK_ROWS):
            with np.errstate(invalid="ignore"):
                frames = block.astype(np.uint8)
            if block.dtype != np.uint8 and not np.array_equal(frames, block):
                row = start + int(np.flatnonzero((frames != block).reshape(len(block), -1).any(axis=1))[0])
                value = block[row - start][frames[row - start] != block[row - start]][0]
                raise self.error(name, [f"observations of row {row} have {value}, expected integers from 0 to 255"])
            yield start, frames
            start += len(block)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of an episode, before the arrays are read."""

    stored: Mapping[str, tuple[tuple[int, ...], str]]
    """Shape and dtype kind, such as "f" or "i", of each array."""
    read: Callable[[str], NDArray[Any]]
    blocks: Callable[[str, int], Iterator[NDArray[Any]]]
    """Function of a name and a number of rows that yields the array in blocks."""


def _open_arrays(name: str, member: Member) -> _Arrays:
    """Open the file of an episode in the format that the first bytes show."""
    if member.size > _FILE_MAX_BYTES:
        raise ConversionError(name, [f"it has {member.size:,} bytes, expected at most {_FILE_MAX_BYTES:,}"])
    head = bytearray(len(npy.MAGIC))
    head = head[: fill(member.stream, memoryview(head))]
    rest = JoinedStream(io.BytesIO(head), member.stream)
    if head.startswith(zips.MAGIC):
        file = NpzFile(io.BytesIO(rest.read() or b""), name)
        stored = {array_name: (array.shape, array.dtype.kind) for array_name, array in file.arrays.items()}
        return _Arrays(stored, file.read, file.blocks)
    if not head.startswith(npy.MAGIC):
        raise ConversionError(name, [unexpected_format(bytes(head), "an .npz file or a .npy file")], hint=AGAIN)
    arrays = load_npy(rest, name, most=member.size)
    if not isinstance(arrays, dict) or not all(isinstance(array, np.ndarray) for array in arrays.values()):
        raise ConversionError(name, [f"it is a pickled {type(arrays).__name__}, expected a dict of arrays"])

    def blocks(array_name: str, rows: int) -> Iterator[NDArray[Any]]:
        array = arrays[array_name]
        yield from (array[start : start + rows] for start in range(0, len(array), rows))

    stored = {array_name: (array.shape, array.dtype.kind) for array_name, array in arrays.items()}
    return _Arrays(stored, arrays.__getitem__, blocks)


def _shape_problems(file: _Arrays, length: int) -> Iterator[str]:
    """Yield the arrays that are missing or have unexpected shapes in an episode of the stated length."""
    for name, (more, kinds, axes) in _EXPECTED.items():
        if name not in file.stored:
            yield f"it has no {name}"
            continue
        shape, kind = file.stored[name]
        if kind not in kinds:
            yield f"{name} have the dtype kind {kind!r}, expected one of {kinds}"
        if shape[:1] != (length + more,) or (shape[1:] != axes and not (axes in {(), (1,)} and prod(shape[1:]) == 1)):
            yield f"{name} are {list(shape)}, but the file name states {[length + more, *axes]}"
    if not 0 < length <= _STEPS_MAX:
        yield f"the name states {length:,} steps, expected 1 to {_STEPS_MAX:,}"


def _value_problems(action: NDArray[Any], reward: NDArray[Any], done: NDArray[Any], total: float) -> Iterator[str]:
    """Yield the values that are invalid or contradict the stated return."""
    if rows := np.flatnonzero((action < 0) | (action >= _ACTIONS))[:1].tolist():
        yield f"action {rows[0]} is {action.reshape(-1)[rows[0]]}, expected 0 to {_ACTIONS - 1}"
    if rows := np.flatnonzero(~np.isfinite(reward))[:1].tolist():
        yield f"reward {rows[0]} is {reward.reshape(-1)[rows[0]]}, expected a finite number"
    elif abs((actual := float(reward.sum(dtype=np.float64))) - total) > _RETURN_TOLERANCE:
        yield f"the return is {actual:.2f}, but the name states {total:.2f}"
    if rows := np.flatnonzero(done != (np.arange(len(done)) == len(done) - 1))[:1].tolist():
        yield f"dones of row {rows[0]} of {len(done)} is {done[rows[0]]}, expected 1 only in the last row"
