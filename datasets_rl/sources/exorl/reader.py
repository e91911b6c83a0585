"""Reader of ExORL's episodes: npz files, in a zip file or in a folder, as the replay buffers of URLB and DrQ-v2 write them.

A file has T + 1 rows. A row has an observation, and the action, the reward and the discount that led to it:

    row           0      1    2    3   ...  T
    observation   o_0    o_1  o_2  o_3      o_T
    physics       p_0    p_1  p_2  p_3      p_T       the state of the simulator, float64
    action        zeros  a_0  a_1  a_2      a_T-1     row 0 is the reset: the action and the reward have no meaning
    reward        zeros  r_0  r_1  r_2      r_T-1     [T + 1, K] for an agent with K tasks
    discount      ones   d_0  d_1  d_2      d_T-1     terminated if the last discount is 0, else truncated
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import END_COLUMNS, Column
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.zips import ZipReader
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE, EpisodeReader
from datasets_rl.sources.exorl.names import ARRAYS, episode_order
from datasets_rl.sources.rows import end_flags, split_episode
from datasets_rl.sources.values import WIDENED, column_differences, count_not_finite
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, OBSERVATION, Key

_FILE_MAX_BYTES = 1 << 28  # of an episode, in the zip file and decompressed. 1,000 steps of states have 1 MB
_STATES: Mapping[str, Key] = {"observation": OBSERVATION, "physics": ("info", "physics")}
_TASK_REWARD: Key = (NEXT, "task_reward")
_DISCOUNT: Key = (NEXT, "discount")
_STEPS: Mapping[str, Key] = {"action": ACTION, "reward": NEXT_REWARD, "discount": _DISCOUNT}
_TEXTS = {
    "action-before-observation": "actions, rewards and discounts are stored with the observation that followed: they "
    "were moved to the row of the previous observation",
    "reward-of-first-task": "rows have a reward for each of several tasks: the reward is the reward of the first task, and "
    "next.task_reward has all",
    "discount-0-inside": "discounts inside an episode are 0: the episode was not split there",
    **NO_TRANSITION,
    **NOT_FINITE,
}


@dataclass(frozen=True, slots=True)
class _Field:
    """Array of a file, and a column that it is converted to. The rewards of several tasks are converted to two."""

    name: str
    column: Column
    first_only: bool = False
    """Whether only the first element of each row is converted."""


def inspect_zip(stream: BinaryIO) -> dict[str, list[int]]:
    """Return the shapes of the arrays in the first episode of a zip file, or nothing if the file has no episode.

    Raises:
        ConversionError: If the stream is not a zip file, or the zip file or the episode is damaged.
    """
    with ZipReader(stream) as archive:
        orders = sorted(filter(None, map(episode_order, archive.members)))
        return {
            name: list(array.shape) for _, path, _ in orders[:1] for name, array in _open(archive, path).arrays.items()
        }


class ExORLReader(EpisodeReader):
    """Reader of a zip file of episodes, or of files of episodes. A part of a zip file is [k, n], the k-th of n ranges.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        facts: Nothing that is needed.

    Raises:
        ConversionError: If there is no episode, or the first episode is invalid. The error names every problem.
    """

    rules = _TEXTS

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        del facts
        self._dataset_id = dataset_id
        self._paths = {path: Path(file) for path, file in files.items()}
        self._zip: ZipReader | None = None
        with ExitStack() as closing:
            if any(path.endswith(".zip") for path in files):
                (file,) = self._paths.values()
                self._zip = closing.enter_context(ZipReader(file))
            names = self._paths if self._zip is None else self._zip.members
            self._names = [order[1:] for order in sorted(filter(None, map(episode_order, names)))]
            if not self._names:
                raise ConversionError(dataset_id, [f"{', '.join(files)} has no file with the name of an episode"])
            self._fields = self._fields_of_first()
            self.columns = [*(field.column for field in self._fields), *END_COLUMNS]
            self._closing = closing.pop_all()

    @override
    def __exit__(self, *details: object) -> None:
        self._closing.close()

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode]:
        self.counts.clear()
        number, count = part or (0, 1)
        total = len(self._names)
        for name, steps in self._names[total * number // count : total * (number + 1) // count]:
            with self._open(name) as file:
                yield from self._split(name, steps, file)

    def _open(self, name: str) -> NpzFile:
        if self._zip is None:
            return NpzFile(self._paths[name])
        return _open(self._zip, name)

    def _fields_of_first(self) -> list[_Field]:
        """Return the fields of the first episode with a step, or else of the first episode."""
        fields: list[_Field] = []
        for name, steps in self._names:
            with self._open(name) as file:
                self.refuse(name.rpartition("/")[2], list(_array_problems(file)))
                fields = [field for array in file.arrays for field in _fields_of_array(array, file)]
            if steps:
                break
        return fields

    def _split(self, name: str, steps: int, file: NpzFile) -> Iterator[Episode]:
        problems = list(_array_problems(file))
        if not problems:
            columns = [field.column for array in file.arrays for field in _fields_of_array(array, file)]
            first = [field.column for field in self._fields]
            problems = [*column_differences(columns, first, "episode"), *_contradictions(file, steps)]
        self.refuse(name.rpartition("/")[2], problems)
        if not steps:
            self.counts["no-transition"] += 1
            return
        fields = {field.column.key: field for field in self._fields if field.column.key in self.kept}
        needed = {field.name for field in fields.values()} | {"discount"}
        arrays = {array: file.arrays[array].read() for array in file.arrays if array in needed}
        discounts = arrays["discount"].reshape(-1)
        self.counts["action-before-observation"] += steps
        self.counts["reward-of-first-task"] += steps * any(field.first_only for field in self._fields)
        self.counts["discount-0-inside"] += int(np.count_nonzero(discounts[1:-1] == 0))
        number = episode_order(name)
        metadata: dict[str, Any] = {"episode_id": np.int64(0 if number is None else number[0])}

        def read(key: Key, start: int, stop: int) -> NDArray[Any]:
            field = fields[key]
            first = int(not field.column.shared)  # the row of the first transition
            return self._as_column(field, arrays[field.name][start + first : stop + first])

        flags = end_flags(steps, terminated=bool(discounts[-1] == 0))
        yield from split_episode(flags, [field.column for field in fields.values()], read, metadata)

    def _as_column(self, field: _Field, rows: NDArray[Any]) -> NDArray[Any]:
        rows = rows[:, :1] if field.first_only else rows.reshape(len(rows), *field.column.shape)
        self.counts["not-finite"] += count_not_finite(rows)
        return rows.astype(field.column.dtype, copy=False)


def _open(archive: ZipReader, name: str) -> NpzFile:
    member = archive.members[name]
    if member.size > _FILE_MAX_BYTES:
        problem = f"{name} has {member.size:,} bytes, expected at most {_FILE_MAX_BYTES:,}"
        raise ConversionError(archive.name, [problem])
    with archive.open(name) as stream:
        return NpzFile(io.BytesIO(stream.readall() or b""), f"{archive.name}: {name}")


def _array_problems(file: NpzFile) -> Iterator[str]:
    """Yield why the arrays of a file cannot be columns."""
    arrays = file.arrays
    yield from (f"it has no array {name}" for name in ARRAYS if name not in arrays)
    for name, array in arrays.items():
        shape = f"{name} is {array.dtype} {list(array.shape)}"
        if array.pickled or array.dtype.kind not in "biuf" or array.dtype.itemsize > 8 or array.dtype == np.uint64:
            yield f"{shape}, expected numbers of at most 64 bits"
        elif not array.shape or 0 in array.shape[1:]:
            yield f"{shape}, expected a row for each observation"
        elif name in {"reward", "discount"} and (array.dtype.kind != "f" or len(array.shape) > 2):
            yield f"{shape}, expected floats, one or a few for each row"
        elif name == "discount" and prod(array.shape[1:]) != 1:
            yield f"{shape}, expected one number for each row"
    declared = sum(array.dtype.itemsize * prod(array.shape) for array in arrays.values())
    if declared > _FILE_MAX_BYTES:
        yield f"the arrays declare {declared:,} bytes, expected at most {_FILE_MAX_BYTES:,}"


def _contradictions(file: NpzFile, steps: int) -> Iterator[str]:
    """Yield how a file contradicts itself or the name of the file."""
    rows = file.arrays["observation"].shape[0]
    if rows != steps + 1:
        yield f"it has {rows:,} rows, but the {steps:,} steps in the name need {steps + 1:,}"
    for name, array in file.arrays.items():
        if array.shape[0] != rows:
            yield f"{name} has {array.shape[0]:,} rows, but observation has {rows:,}"


def _fields_of_array(name: str, file: NpzFile) -> Iterator[_Field]:
    array = file.arrays[name]
    dtype = array.dtype.newbyteorder("=")
    dtype, shape = WIDENED.get(dtype, dtype), array.shape[1:]
    if name in _STATES:
        yield _Field(name, Column(_STATES[name], dtype, shape, shared=True))
    elif name == "reward" and prod(shape) > 1:
        yield _Field(name, Column(NEXT_REWARD, dtype, (1,)), first_only=True)
        yield _Field(name, Column(_TASK_REWARD, dtype, shape))
    else:
        # Other arrays belong to the agent, such as the skill that the agent followed, which was chosen with the action.
        key = _STEPS.get(name, ("meta", name.replace(".", "_").replace("/", "_")))
        yield _Field(name, Column(key, dtype, (1,) if key[0] == NEXT else shape))
