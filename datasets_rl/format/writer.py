"""Episodes -> the files of a dataset, in blocks, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import ConversionFailed
from datasets_rl.format.npy import NpyStream
from datasets_rl.manifest import StoredFile
from datasets_rl.rows import ROWS_FILE, Column, Field, Schema
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted
from datasets_rl.ted.stats import Moments, summary
from datasets_rl.ted.steps import split_states
from datasets_rl.ted.table import EPISODE_DTYPE

__all__ = ["EPISODES_FILE", "DatasetWriter", "Written"]

EPISODES_FILE = "episodes.npy"
_BLOCK_BYTES = 8 << 20
_BLOCK_STEPS = 1 << 16
_FLAG = np.dtype(np.bool_)
_OWN = (Column(NEXT_DONE, _FLAG, (1,)), Column(EPISODE, np.dtype(np.int32), (), read_as=np.dtype(np.int64)))


@dataclass(frozen=True, slots=True)
class Written:
    """What the writer knows when all episodes are on disk."""

    schema: Schema
    files: tuple[StoredFile, ...]
    steps: int
    episodes: int
    final_unknown: int
    statistics: Mapping[str, Any]


class DatasetWriter:
    """Write episodes into a folder: rows.npy, final.npy, a file for each wide field, episodes.npy.

    ``("next", "done")`` and ``("episode",)`` are added here. The flags are checked: every episode ends with
    ``terminated`` or ``truncated``, and no step inside one has either.

    Args:
        folder: An empty folder.
        columns: What a step consists of.
        what: The dataset's name, for messages.
        steps: Steps that will come, where known.
    """

    def __init__(self, folder: Path, columns: Sequence[Column], *, what: str, steps: int | None = None) -> None:
        self.schema = Schema.layout([*columns, *_OWN])
        self._folder = folder
        self._what = what
        self._carried = [field for field in self.schema if field.carried]
        self._given = [field for field in self.schema if not field.carried and field.key not in {NEXT_DONE, EPISODE}]
        widest = max(self.schema.record_bytes, *(field.step_bytes for field in self.schema))
        self._capacity = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // widest))
        self._rows = _Block(self.schema.narrow, self.schema.wide, self.schema.record, self._capacity)
        wide = [field for field in self.schema.wide if field.carried]
        narrow = [field for field in self.schema.narrow if field.carried]
        self._finals = _Block(narrow, wide, self.schema.final_record, self._capacity)
        self._streams = _streams(folder, self.schema, steps)
        self._moments = {field.key: Moments(field.shape) for field in self.schema if field.dtype.kind == "f"}
        self._filled = 0
        self._ended = 0
        self._steps = 0
        self._chunks: list[tuple[int, int]] = []
        self._chunk_episodes: list[int] = []
        self._ends: list[int] = []
        self._episode = 0
        self._open_steps = 0
        self._lengths: list[int] = []
        self._known: list[bool] = []
        self._returns: list[NDArray[np.float64]] = []
        self._open_return = 0.0
        self._facts: list[Mapping[str, Any]] = []

    def append(self, piece: Episode) -> None:
        """Write an episode, or the next piece of one.

        Raises:
            ConversionFailed: If a column is missing or has another length, shape or dtype than at the start, or a flag
                stands where none may, or none where one must.
        """
        steps = self._checked(piece)
        taken = 0
        while taken < steps:
            room = min(self._capacity - self._filled, steps - taken)
            self._copy(piece, taken, room)
            taken += room
            if taken == steps and not piece.continues:
                self._end_episode(piece, steps)
            if self._filled == self._capacity:
                self._flush()

    def _copy(self, piece: Episode, taken: int, count: int) -> None:
        start, stop = self._filled, self._filled + count
        for field in self._given:
            self._rows.columns[field.key][start:stop] = piece.steps[field.key][taken : taken + count]
        for field in self._carried:
            self._rows.columns[field.key][start:stop] = piece.states[field.key][taken : taken + count]
        self._chunks.append((start, count))
        self._chunk_episodes.append(self._episode)
        self._open_steps += count
        self._filled = stop

    def _end_episode(self, piece: Episode, steps: int) -> None:
        for field in self._carried:
            final = split_states(piece.states[field.key], steps)[1]
            self._finals.columns[field.key][self._ended] = 0 if final is None else final
        self._ended += 1
        self._ends.append(self._filled - 1)
        self._lengths.append(self._open_steps)
        self._known.append(piece.final_known)
        self._facts.append(piece.facts)
        self._open_steps = 0
        self._episode += 1

    def _checked(self, piece: Episode) -> int:
        steps = len(piece)
        problems = list(self._problems(piece, steps))
        if problems:
            row = self._steps + self._filled
            raise ConversionFailed(self._what, [f"episode {self._episode} (from row {row}): {one}" for one in problems])
        return steps

    def _problems(self, piece: Episode, steps: int) -> Iterator[str]:
        if not steps:
            yield "it has no step"
        if len(piece.steps) != len(self._given) or len(piece.states) != len(self._carried):
            wanted = sorted(field.name for field in (*self._given, *self._carried))
            yield f"its columns are {sorted(map(dotted, (*piece.steps, *piece.states)))}; expected {wanted}"
            return
        for fields, arrays, most in ((self._given, piece.steps, steps), (self._carried, piece.states, steps + 1)):
            for field in fields:
                array = arrays.get(field.key)
                if array is None:
                    yield f"{field.name} is missing"
                elif array.dtype != field.dtype or array.shape[1:] != field.shape or not steps <= len(array) <= most:
                    yield (
                        f"{field.name} is {array.dtype.name} {list(array.shape)}; "
                        f"expected {field.dtype.name} {[steps, *field.shape]}"
                    )

    def _flush(self) -> None:
        if not self._filled:
            return
        count = self._filled
        columns = self._rows.columns
        numbers = np.array(self._chunk_episodes, np.int32)
        columns[EPISODE][:count] = np.repeat(numbers, [length for _, length in self._chunks])
        np.logical_or(columns[NEXT_TERMINATED][:count], columns[NEXT_TRUNCATED][:count], out=columns[NEXT_DONE][:count])
        self._check_flags(columns[NEXT_DONE][:count, 0])
        self._sum_rewards(columns[NEXT_REWARD][:count, 0], numbers)
        for key, moments in self._moments.items():
            moments.update(columns[key][:count])
        for name, block in self._rows.files(count):
            self._streams[name].append(block)
        for name, block in self._finals.files(self._ended):
            self._streams[f"final.{name}" if name != ROWS_FILE else "final.npy"].append(block)
        self._steps += count
        self._filled = self._ended = 0
        self._chunks.clear()
        self._chunk_episodes.clear()
        self._ends.clear()

    def _check_flags(self, done: NDArray[np.bool_]) -> None:
        expected = np.zeros(len(done), np.bool_)
        expected[self._ends] = True
        wrong = np.flatnonzero(done != expected)
        if len(wrong):
            row = int(wrong[0])
            says = "has no flag at its end" if expected[row] else "has an end flag before its end"
            raise ConversionFailed(
                self._what, [f"row {self._steps + row}: its episode {says} (and {len(wrong) - 1} further rows)"]
            )

    def _sum_rewards(self, rewards: NDArray[Any], numbers: NDArray[np.int32]) -> None:
        sums = np.add.reduceat(rewards.astype(np.float64), [start for start, _ in self._chunks])
        returns = np.zeros(self._episode - int(numbers[0]) + 1)
        np.add.at(returns, numbers - numbers[0], sums)
        returns[0] += self._open_return
        # The last entry belongs to the episode that goes on in the next block, if there is one.
        self._open_return = float(returns[-1])
        self._returns.append(returns[:-1])

    def finish(self) -> Written:
        """Write what is left and the episode table.

        Raises:
            ConversionFailed: If no step came, or the last episode has no end.
        """
        self._flush()
        if self._open_steps or not self._steps:
            problem = f"episode {self._episode} has no end" if self._open_steps else "it has no step"
            raise ConversionFailed(self._what, [problem])
        table = self._table()
        files = [
            stream.close(trailing=self.schema.record_bytes if name == ROWS_FILE else 0)
            for name, stream in self._streams.items()
        ]
        episodes = NpyStream(self._folder / EPISODES_FILE, table.dtype, expected=len(table))
        episodes.append(table)
        files.append(episodes.close())
        statistics = {dotted(key): moments.to_json() for key, moments in self._moments.items()}
        statistics |= {"return": summary(table["return"]), "length": summary(table["length"])}
        return Written(
            schema=self.schema,
            files=tuple(sorted(files, key=lambda entry: entry.path)),
            steps=self._steps,
            episodes=len(table),
            final_unknown=int((~table["final_known"]).sum()),
            statistics=statistics,
        )

    def _table(self) -> NDArray[np.void]:
        facts = self._facts[0] if self._facts else {}
        extra = [(name, np.asarray(value).dtype) for name, value in facts.items() if name != "source"]
        table = np.zeros(len(self._lengths), np.dtype([*EPISODE_DTYPE.descr, *extra]))
        table["length"] = self._lengths
        table["start"] = np.cumsum(table["length"]) - table["length"]
        table["return"] = np.concatenate(self._returns)
        table["final_known"] = self._known
        table["source"] = np.arange(len(table))
        for name in facts:
            table[name] = [known.get(name, 0) for known in self._facts]
        return table

    def discard(self) -> None:
        """Close all files without finishing them."""
        for stream in self._streams.values():
            stream.discard()


class _Block:
    """Room for a number of records, and for as many items of each wide field."""

    def __init__(
        self, narrow: Sequence[Field], wide: Sequence[Field], record: np.dtype[np.void], capacity: int
    ) -> None:
        self._records = np.zeros(capacity, record)
        self._wide = {field.file: np.zeros((capacity, *field.shape), field.dtype) for field in wide}
        self._has_records = bool(narrow)
        self.columns: dict[Key, NDArray[Any]] = {field.key: self._records[field.name] for field in narrow}
        self.columns |= {field.key: self._wide[field.file] for field in wide}

    def files(self, count: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the name of each file and the first `count` items for it."""
        if self._has_records:
            yield ROWS_FILE, self._records[:count]
        for name, items in self._wide.items():
            yield name, items[:count]


def _streams(folder: Path, schema: Schema, steps: int | None) -> dict[str, NpyStream]:
    with disk.disk_errors(folder):
        streams = {ROWS_FILE: NpyStream(folder / ROWS_FILE, schema.record, expected=steps)}
        if any(field.carried for field in schema.narrow):
            streams["final.npy"] = NpyStream(folder / "final.npy", schema.final_record)
        for field in schema.wide:
            streams[field.file] = NpyStream(folder / field.file, field.dtype, field.shape, steps)
            if field.carried:
                streams[field.final_file] = NpyStream(folder / field.final_file, field.dtype, field.shape)
        return streams
