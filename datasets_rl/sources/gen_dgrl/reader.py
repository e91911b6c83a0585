"""Gen-DGRL's archives as trajectories: each file in one is an episode.

observations   o_0  o_1  ...  o_T-1  | o_T            o_T is the first frame of the next level: Procgen had reset itself
actions        a_0  a_1  ...  a_T-1
rewards        r_0  r_1  ...  r_T-1                   what a_t led to
dones          0    0    ...  1

A file is an ``.npz``, or a dict that numpy pickled; its bytes tell. Frames are floats from 0 to 255.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read import npy, zips
from datasets_rl.read.archive import Member, members_of_part
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.pickles import load_npy
from datasets_rl.read.streams import AGAIN, Joined, fill, unlike
from datasets_rl.sources.base import NO_TRANSITION, Decision, EpisodeReader, Selection
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, OBSERVATION

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["GenDGRLReader"]

_NAME = re.compile(r"(\d{8})T(\d{6})_(\d{1,18})_(\d{1,9})_(-?\d{1,18})_(-?\d{1,15}(?:\.\d+)?)\.np[yz]", re.ASCII)
_FRAME = (3, 64, 64)
_ACTIONS = 15
_BLOCK_ROWS = (8 << 20) // (4 * 3 * 64 * 64)
_FILE_MOST = 1 << 30  # 20 times what an episode of 1,000 steps has
_STEPS_MOST = _FILE_MOST // (4 * 3 * 64 * 64)
_RETURN_OFF = 0.01  # names have two digits
_FLAG = np.dtype(np.bool_)
_COLUMNS = (
    Column(OBSERVATION, np.dtype(np.uint8), _FRAME, shared=True),
    Column(ACTION, np.dtype(np.int64), (1,)),
    Column(NEXT_REWARD, np.dtype(np.float32), (1,)),
    Column(NEXT_TERMINATED, _FLAG, (1,)),
    Column(NEXT_TRUNCATED, _FLAG, (1,)),
)
_WANTED: Mapping[str, tuple[int, str, tuple[int, ...]]] = {
    "observations": (1, "fu", _FRAME),
    "actions": (0, "iu", (1,)),
    "rewards": (0, "f", (1,)),
    "dones": (0, "biuf", ()),
}
"""By name: how many rows more than steps, the kinds of type, the axes of a row."""
_TEXTS = {
    "alien-last-frame": "the last frame of an episode is the first one of the next level: it was left out, and the state "
    "after the last step is not known",
    "terminated": "episodes end with a flag that does not tell a time limit from another end: they were marked terminated",
    "frames-cast": "frames are stored as floats with whole values: they became bytes",
    **NO_TRANSITION,
    "flags-cast": "files store flags as numbers, 0 or 1; they were turned into booleans",
}


class GenDGRLReader(EpisodeReader):
    """An archive; a part is a pair (k, n): the k-th of n parts.

    Args:
        what: The dataset, for messages.
        place: The archive.
        games: All games, and whether each is wanted.
        metadata: What of the selection is needed.
    """

    columns = _COLUMNS

    def __init__(self, what: str, place: Path, games: Mapping[str, bool], metadata: Mapping[str, Any]) -> None:
        self._what = what
        self._place = place
        self._games = games
        self._wanted = Selection(keys=tuple(metadata.get("keys", ()))).kept_keys([column.key for column in _COLUMNS])
        self._found: Counter[str] = Counter()
        self.steps = None
        self.metadata = {}
        self.decisions: list[Decision] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        """Do nothing: the archive is open only while it is read."""

    def specs(self) -> Mapping[str, Any]:
        """Return what Procgen's frames and actions may be."""
        return {
            "observation": {"kind": "bounded", "shape": list(_FRAME), "dtype": "uint8", "low": 0, "high": 255},
            "action": {"kind": "bounded", "shape": [1], "dtype": "int64", "low": 0, "high": _ACTIONS - 1},
        }

    def episodes(self, part: Any = None) -> Iterator[Episode]:
        """Yield the episodes of the game that begin in a part of the archive; by default those of all of it."""
        self._found.clear()
        for member in members_of_part(self._place, *(part or (0, 1))):
            path = PurePosixPath(member.name)
            # An archive of one game may have no folder of that name; what lies in another game's is never meant.
            if path.name.startswith(".") or not all(self._games.get(folder, True) for folder in path.parts[:-1]):
                continue
            yield from self._episode(path.name, member)
        self.decisions = [Decision(rule, text, self._found[rule]) for rule, text in _TEXTS.items() if self._found[rule]]

    def _failed(self, name: str, problems: list[str]) -> ConversionError:
        return ConversionError(self._what, [f"{name}: {one}" for one in problems])

    def _episode(self, name: str, member: Member) -> Iterator[Episode]:
        said = _NAME.fullmatch(name)
        if said is None:
            raise self._failed(name, ["it is not named <time>_<episode>_<length>_<level seed>_<return>.npy"])
        date, time, number, length, seed, total = said.groups()
        if not int(length):
            self._found["no-transition"] += 1
            return
        try:
            file = _opened(name, member)
            if faults := [*_misplaced(file, int(length))]:
                raise self._failed(name, faults)
            action, reward, done = (file.read(one) for one in ("actions", "rewards", "dones"))
        except ConversionError as error:
            raise self._failed(name, [one.removeprefix(f"{name}: ") for one in error.problems]) from None
        steps = len(action)
        if faults := [*_wrong(action, reward, done.reshape(-1), float(total))]:
            raise self._failed(name, faults)
        self._found["alien-last-frame"] += 1
        self._found["terminated"] += 1
        self._found["frames-cast"] += file.stored["observations"][1] != "u"
        self._found["flags-cast"] += done.dtype.kind != "b"
        ends = done.reshape(-1, 1) == 1
        columns = {
            ACTION: action.astype(np.int64).reshape(steps, 1),
            NEXT_REWARD: reward.astype(np.float32).reshape(steps, 1),
            NEXT_TERMINATED: ends,
            NEXT_TRUNCATED: np.zeros_like(ends),
        }
        columns = {key: values for key, values in columns.items() if key in self._wanted}
        metadata: dict[str, Any] = {
            "saved": np.int64(date + time),
            "number": np.int64(number),
            "level_seed": np.int64(seed),
            "stated_return": np.float64(total),
        }
        if OBSERVATION not in self._wanted:
            yield Episode(columns, {}, metadata=metadata)
            return
        for start, frames in self._frames(name, file):
            stop = min(start + len(frames), steps)
            if start < stop:
                rows = {key: values[start:stop] for key, values in columns.items()}
                yield Episode(rows, {OBSERVATION: frames[: stop - start]}, stop < steps, metadata)

    def _frames(self, name: str, file: _Arrays) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield frames as bytes in blocks, with the first row of each."""
        start = 0
        for block in file.blocks("observations", _BLOCK_ROWS):
            with np.errstate(invalid="ignore"):
                frames = block.astype(np.uint8)
            if block.dtype != np.uint8 and not np.array_equal(frames, block):
                row = start + int(np.flatnonzero((frames != block).reshape(len(block), -1).any(axis=1))[0])
                value = block[row - start][frames[row - start] != block[row - start]][0]
                raise self._failed(
                    name, [f"observations of row {row} have {value}; expected whole numbers from 0 to 255"]
                )
            yield start, frames
            start += len(block)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays of an episode, before they are read."""

    stored: Mapping[str, tuple[tuple[int, ...], str]]
    """The shape of each, and the kind of its type, "f" or "i"."""
    read: Callable[[str], NDArray[Any]]
    blocks: Callable[[str, int], Iterator[NDArray[Any]]]
    """Yields an array in blocks of so many rows."""


def _opened(name: str, member: Member) -> _Arrays:
    """Open an episode as what its first bytes say that it is."""
    if member.size > _FILE_MOST:
        raise ConversionError(name, [f"it has {member.size:,} bytes; expected {_FILE_MOST:,} at most"])
    head = bytearray(len(npy.MAGIC))
    head = head[: fill(member.stream, memoryview(head))]
    rest = Joined(io.BytesIO(head), member.stream)
    if head.startswith(zips.MAGIC):
        file = NpzFile(io.BytesIO(rest.read() or b""), name)
        stored = {one: (array.shape, array.dtype.kind) for one, array in file.arrays.items()}
        return _Arrays(stored, file.read, file.blocks)
    if not head.startswith(npy.MAGIC):
        raise ConversionError(name, [unlike(bytes(head), "an .npz file or a .npy file")], hint=AGAIN)
    arrays = load_npy(rest, name, most=member.size)
    if not isinstance(arrays, dict) or not all(isinstance(one, np.ndarray) for one in arrays.values()):
        raise ConversionError(name, [f"it holds a {type(arrays).__name__}; expected a dict of arrays"])

    def blocks(one: str, rows: int) -> Iterator[NDArray[Any]]:
        yield from (arrays[one][start : start + rows] for start in range(0, len(arrays[one]), rows))

    return _Arrays({one: (array.shape, array.dtype.kind) for one, array in arrays.items()}, arrays.__getitem__, blocks)


def _misplaced(file: _Arrays, length: int) -> Iterator[str]:
    """Yield which arrays an episode of that length lacks, or has in other shapes."""
    for name, (more, kinds, axes) in _WANTED.items():
        if name not in file.stored:
            yield f"it has no {name}"
            continue
        shape, kind = file.stored[name]
        if kind not in kinds:
            yield f"{name} are of kind {kind!r}; expected one of {kinds}"
        if shape[:1] != (length + more,) or (shape[1:] != axes and not (axes in {(), (1,)} and prod(shape[1:]) == 1)):
            yield f"{name} are {list(shape)}; the file's name says {[length + more, *axes]}"
    if not 0 < length <= _STEPS_MOST:
        yield f"its name says {length:,} steps; expected 1 to {_STEPS_MOST:,}"


def _wrong(action: NDArray[Any], reward: NDArray[Any], done: NDArray[Any], total: float) -> Iterator[str]:
    """Yield which values cannot be those of an episode with that return."""
    if rows := np.flatnonzero((action < 0) | (action >= _ACTIONS))[:1].tolist():
        yield f"action {rows[0]} is {action.reshape(-1)[rows[0]]}; expected 0 to {_ACTIONS - 1}"
    if rows := np.flatnonzero(~np.isfinite(reward))[:1].tolist():
        yield f"reward {rows[0]} is {reward.reshape(-1)[rows[0]]}"
    elif abs((found := float(reward.sum(dtype=np.float64))) - total) > _RETURN_OFF:
        yield f"its rewards add up to {found:.2f}; its name says {total:.2f}"
    if rows := np.flatnonzero(done != (np.arange(len(done)) == len(done) - 1))[:1].tolist():
        yield f"dones of row {rows[0]} of {len(done)} is {done[rows[0]]}; expected a mark at the end, and nowhere else"
