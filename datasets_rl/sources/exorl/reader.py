"""Reader of ExORL's episodes: npz files, in a zip file or in a folder, as the replay buffers of URLB and DrQ-v2 write them.

A file has T + 1 rows. A row has an observation, and the action, the reward and the discount that led to it:

    row           0      1    2    3   ...  T
    observation   o_0    o_1  o_2  o_3      o_T
    physics       p_0    p_1  p_2  p_3      p_T       the state of the simulator, float64
    action        zeros  a_0  a_1  a_2      a_T-1     row 0 is the reset: its action and its reward have no meaning
    reward        zeros  r_0  r_1  r_2      r_T-1     [T + 1, K] for an agent with K tasks
    discount      ones   d_0  d_1  d_2      d_T-1     terminated if the last one is 0, else truncated
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from datasets_rl.errors import ConversionError
from datasets_rl.format.schema import Column
from datasets_rl.read.npz import NpzFile
from datasets_rl.read.zips import ZipReader
from datasets_rl.sources.base import NO_TRANSITION, NOT_FINITE
from datasets_rl.sources.exorl.names import ARRAYS, episode_order
from datasets_rl.sources.flat.arrays import ArrayFile, NpzArrays
from datasets_rl.sources.flat.ends import Ends
from datasets_rl.sources.flat.layout import Layout
from datasets_rl.sources.flat.plan import ColumnSlice, Plan
from datasets_rl.sources.flat.reader import Block, FlatReader
from datasets_rl.sources.values import WIDENED, column_differences
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import ACTION, NEXT, NEXT_REWARD, OBSERVATION, Key

_FILE_MAX_BYTES = 1 << 28  # of an episode, in the zip file and decompressed; 1,000 steps of states have 1 MB
_TASK_REWARD: Key = (NEXT, "task_reward")
_KEYS: Mapping[str, Key] = {
    "observation": OBSERVATION,
    "physics": ("info", "physics"),
    "action": ACTION,
    "reward": NEXT_REWARD,
    "discount": (NEXT, "discount"),
}
_STATES = ("observation", "physics")
_LAYOUT = Layout(alignment="action-before", by="file", unit="episode")


def inspect_zip(stream: BinaryIO) -> dict[str, list[int]]:
    """Return the shapes of the arrays in the first episode of a zip file; none if it has no episode.

    Raises:
        ConversionError: If it is not a zip file, or it or the episode is damaged.
    """
    with ZipReader(stream) as archive:
        orders = sorted(filter(None, map(episode_order, archive.members)))
        return {
            name: list(array.shape)
            for _, path, _ in orders[:1]
            for name, array in NpzFile(_member(archive, path), path).arrays.items()
        }


class ExORLReader(FlatReader):
    """Reader of a zip file of episodes, or of files of episodes. A part of a zip file is [k, n], its k-th of n ranges.

    Args:
        dataset_id: Id of the dataset, for messages.
        files: The local files, by path.
        facts: Nothing that is needed.

    Raises:
        ConversionError: If there is no episode, or the first one is invalid; the error names every problem.
    """

    rules: Mapping[str, str] = {
        "action-before-observation": "actions, rewards and discounts are stored with the observation that they led to: "
        "they were moved to the row of the previous observation",
        "reward-of-first-task": "rows have a reward for each of several tasks: the reward is that of the first one, and "
        "next.task_reward has all",
        "discount-0-inside": "discounts inside an episode are 0: the episode was not split there",
        **NO_TRANSITION,
        **NOT_FINITE,
    }

    def __init__(self, dataset_id: str, files: Mapping[str, Path], facts: Mapping[str, Any]) -> None:
        self._zip: ZipReader | None = None
        with ExitStack() as closing:
            if any(path.endswith(".zip") for path in files):
                (file,) = map(Path, files.values())
                self._zip = closing.enter_context(ZipReader(file))
            orders = sorted(filter(None, map(episode_order, files if self._zip is None else self._zip.members)))
            if not orders:
                raise ConversionError(dataset_id, [f"{', '.join(files)} has no file with the name of an episode"])
            self._episodes = [(path, number) for number, path, _ in orders]
            paths = {path: files.get(path, Path()) for _, path, _ in orders}
            super().__init__(dataset_id, _LAYOUT, "npz", paths, facts)
            self._closing = closing.pop_all()

    @override
    def __exit__(self, *details: object) -> None:
        self._closing.close()

    @override
    def episodes(self, part: Any = None) -> Iterator[Episode | EpisodeBatch]:
        piece, pieces = part or (0, 1)
        first, last = (len(self._episodes) * number // pieces for number in (piece, piece + 1))
        self.counts.clear()
        if chosen := self._episodes[first:last]:
            yield from super().episodes(chosen)

    @property
    @override
    def needed(self) -> set[Key]:
        return {*self.kept, _TASK_REWARD}

    @override
    def open_file(self, name: str) -> ArrayFile:
        source = self._paths[name] if self._zip is None else _member(self._zip, name)
        return NpzArrays(source, name.rpartition("/")[2])

    @override
    def plan(self, file: ArrayFile) -> Plan:
        problems = [*_problems(file)]
        parts = [] if problems else [part for name in file.arrays for part in _column_slices(name, file)]
        plan = Plan(_LAYOUT, tuple(parts), {}, {}, {}, "file")
        if self._known is not None and not problems:
            problems = [*column_differences(plan.columns, self._known, "episode"), *_contradictions(file)]
        if problems:
            raise ConversionError(file.name, problems)
        return plan

    @override
    def find_ends(self, file: ArrayFile, plan: Plan) -> Ends:
        ends = super().find_ends(file, plan)
        discounts = np.asarray(file.read_all("discount")).reshape(-1)
        ends.terminated[-1:] = discounts[-1] == 0
        ends.truncated[-1:] = discounts[-1] != 0
        steps = len(ends.terminated)
        ends.found["action-before-observation"] = steps
        ends.found["reward-of-first-task"] = steps * any(part.column.key == _TASK_REWARD for part in plan.parts)
        ends.found["discount-0-inside"] = int(np.count_nonzero(discounts[1:-1] == 0))
        return ends

    @override
    def before(self, block: Block, ends: Ends, number: int) -> Mapping[str, NDArray[Any]]:
        if _TASK_REWARD in block.steps:
            block.steps[NEXT_REWARD] = block.steps[_TASK_REWARD][:, :1]
        return {"episode_id": np.full(len(block.episodes), number)}


def _member(archive: ZipReader, name: str) -> BinaryIO:
    """Return the bytes of a file in a zip file.

    Raises:
        ConversionError: If the file is larger than an episode can be.
    """
    member = archive.members[name]
    if member.size > _FILE_MAX_BYTES:
        problem = f"{name} has {member.size:,} bytes, expected at most {_FILE_MAX_BYTES:,}"
        raise ConversionError(archive.name, [problem])
    with archive.open(name) as stream:
        return io.BytesIO(stream.readall() or b"")


def _problems(file: ArrayFile) -> Iterator[str]:
    """Yield why the arrays of a file cannot be columns."""
    arrays: Mapping[str, Any] = file.file.arrays if isinstance(file, NpzArrays) else {}
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
        yield f"its arrays declare {declared:,} bytes, expected at most {_FILE_MAX_BYTES:,}"


def _contradictions(file: ArrayFile) -> Iterator[str]:
    """Yield how a file contradicts itself or its name."""
    rows, order = file.arrays["observation"].rows, episode_order(file.name)
    if order is not None and rows != order[2] + 1:
        yield f"it has {rows:,} rows, but the {order[2]:,} steps in its name need {order[2] + 1:,}"
    for name, array in file.arrays.items():
        if array.rows != rows:
            yield f"{name} has {array.rows:,} rows, but observation has {rows:,}"


def _column_slices(name: str, file: ArrayFile) -> Iterator[ColumnSlice]:
    """Yield the column of an array. The rewards of several tasks have a second column, the reward of the first task."""
    dtype, shape = WIDENED.get(file.arrays[name].dtype, file.arrays[name].dtype), file.arrays[name].shape
    # Other arrays are those of the agent, such as the skill that the agent followed, which was chosen with the action.
    key = _KEYS.get(name, ("meta", name.replace(".", "_").replace("/", "_")))
    if key == NEXT_REWARD and prod(shape) > 1:
        key = _TASK_REWARD
        yield ColumnSlice("", Column(NEXT_REWARD, dtype, (1,)), constant=0.0)  # `before` has the values
    elif key[0] == NEXT:
        shape = (1,)
    yield ColumnSlice(name, Column(key, dtype, shape, shared=name in _STATES))
