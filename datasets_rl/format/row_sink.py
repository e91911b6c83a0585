"""Rows of a dataset on their way to files: collected in batches, which threads check, summarize and write.

chunk   |  s_0  s_1  s_2  |  s_0  s_1      columns by field. An episode ends at each stop
batch   ...  a thread writes a full batch to rows.npy and the files of wide fields, while the other batch is filled.
             Another thread writes the fingerprints of this batch at the same time
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import ConversionError
from datasets_rl.fingerprints.fingerprint import FINGERPRINTS_FILE, SKETCHES_FILE
from datasets_rl.format.fingerprints import FingerprintWriter, Texts
from datasets_rl.format.images.base import FieldWriter
from datasets_rl.format.manifest import StoredFile
from datasets_rl.format.npy import NpyStream, unfinished_blocks
from datasets_rl.format.schema import FINAL_FILE, ROWS_FILE, Field, Schema
from datasets_rl.format.statistics import Moments, has_statistics
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_REWARD, NEXT_TERMINATED, NEXT_TRUNCATED, Key

_COPY_BYTES = 256 << 10  # fits the cache of a core: copying a file in larger blocks takes nearly twice as long


@dataclass(slots=True)
class Chunk:
    """Consecutive rows, in the values that are stored."""

    count: int
    """Number of rows, n."""
    columns: Mapping[Key, Any]
    """Values by field, at least [n, ...]: an array, a list of encoded images, compressed images, or packets of videos."""
    stops: Sequence[int]
    """Row after the last row of each episode that ends in the chunk, [E]. Rows after the last stop are of an episode
    that the next chunk continues."""
    final_states: Mapping[Key, Any]
    """Values after the last row of these episodes by shared field, [E, ...]."""
    deferred: bool = False
    """Whether `RowSink.patch` will replace the wide shared fields of the only row."""


class RowSink:
    """Append-only writer of the rows and final states of a dataset, and of their statistics.

    Args:
        folder: The folder of the files.
        schema: The fields.
        capacity: Number of rows of a batch.
        name: Name of the dataset, for messages.
        steps: Total number of rows, if known.
        written: Rows, episodes, and rows by file that an earlier process wrote and that are kept.
        writers: The writers of the fields, which append to `streams` from the first row on.
        texts: Returns the vocabulary of a text field.
        summarized: Whether the rows get digests, statistics and fingerprints.
    """

    def __init__(
        self,
        folder: Path,
        schema: Schema,
        capacity: int,
        *,
        name: str,
        steps: int | None,
        written: tuple[int, int, Mapping[str, int]] | None,
        writers: Mapping[Key, FieldWriter],
        texts: Texts,
        summarized: bool = True,
    ) -> None:
        self._summarized = summarized
        self._fingerprints = FingerprintWriter(schema, writers, texts) if summarized else None
        self._writers = writers
        self._name = name
        self._schema = schema
        self.rows = written[0] if written else 0
        """Number of rows, on the disk or in a batch."""
        self.open_return = 0.0
        """Sum of the rewards of the episode that is not complete, in the rows that were written."""
        # Double buffering: a batch is filled while the thread checks, summarizes and writes the other, which rows that
        # fit in one batch do not need.
        self._new_batch = partial(_Batch, schema, capacity, writers)
        self._batch: _Batch = self._new_batch()
        self._spare: _Batch | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlds-write")
        self._fingerprint_thread = ThreadPoolExecutor(1, thread_name_prefix="rlds-fingerprint")
        self._pending_write: Future[None] | None = None
        self._returns: list[NDArray[np.float64]] = []
        self.moments = self._empty_moments()
        # Moments since the last commit are merged at a commit, so a commit and a partial dataset sum in the same order.
        self._new_moments = self._empty_moments()
        self.streams = _open_streams(folder, schema, steps, written, hashed=summarized)
        """The open files by name."""
        self.stale: set[int] = set()
        """Episodes whose fingerprints are computed from the files, because their rows did not all pass here in order."""

    def _empty_moments(self) -> dict[Key, Moments]:
        fields = filter(has_statistics, self._schema) if self._summarized else ()
        return {field.key: Moments(field.shape) for field in fields}

    def append(self, chunk: Chunk, episode: int) -> None:
        """Append rows. `episode` is the number of the first row's episode."""
        taken = ended = 0
        while taken < chunk.count:
            batch = self._batch
            stop = min(taken + batch.capacity - batch.filled, chunk.count)
            shift = batch.filled - taken
            for key, values in chunk.columns.items():
                batch.rows.columns[key][batch.filled : stop + shift] = values[taken:stop]
            complete = bisect_right(chunk.stops, stop)
            for key, values in chunk.final_states.items():
                target = slice(batch.ended, batch.ended + complete - ended)
                batch.final_states.columns[key][target] = values[ended:complete]
            if chunk.deferred:
                batch.deferred.append(batch.filled)
                self.stale.add(episode + ended)
            stops = chunk.stops[ended:complete]
            edges = [taken, *stops] if stops and stops[-1] == stop else [taken, *stops, stop]
            batch.extents += [(start + shift, end - start) for start, end in pairwise(edges)]
            batch.extent_episodes += range(episode + ended, episode + ended + len(edges) - 1)
            batch.ends += [end + shift - 1 for end in stops]
            self.rows += stop - taken
            taken, ended = stop, complete
            batch.filled, batch.ended = stop + shift, len(batch.ends)
            if batch.filled == batch.capacity:
                self._submit_batch()

    def append_stored(
        self, folder: Path, rows: Mapping[str, int], schema: Schema, renumber: Callable[[str, NDArray[Any]], None]
    ) -> None:
        """Append the rows of another sink of the same columns.

        Args:
            folder: Folder of the other sink.
            rows: Number of rows of each file of the other sink that are appended.
            schema: Schema of the other sink, which may have the fields in another order.
            renumber: Adapts a block of a file, given its name, in place.

        Raises:
            IntegrityError: If the folder does not have the rows.
        """
        for name, stream in self.streams.items():
            if name not in rows:
                continue
            max_rows = max(1, _COPY_BYTES // stream.item_bytes)
            dtype = schema.array_files[name].dtype
            for block in unfinished_blocks(folder / name, dtype, stream.shape, rows[name], max_rows):
                renumber(name, block)
                stream.append(block if dtype == stream.dtype else _reordered(block, stream.dtype))
        self.rows += rows[ROWS_FILE]
        self.forget_open_episode()

    def forget_open_episode(self) -> None:
        """Begin a fingerprint anew with the next row."""
        if self._fingerprints is not None:
            self._fingerprints.forget()

    def patch(self, row: int, states: Mapping[Key, NDArray[Any]]) -> None:
        """Overwrite wide fields of a row that this process appended, with items [1, ...]."""
        self._write_pending()
        for key, state in states.items():
            self._writers[key].patch(row, state)

    def drain(self) -> list[NDArray[np.float64]]:
        """Write all rows. Return the returns of the episodes that were completed since the last call, [n] each."""
        self._write_pending()
        for key, moments in self.moments.items():
            moments.merge(self._new_moments[key].state())
        self._new_moments = self._empty_moments()
        returns, self._returns = self._returns, []
        return returns

    def close(self) -> list[StoredFile]:
        """Close all files, and return their manifest entries."""
        return [stream.close() for stream in self.streams.values()]

    def discard(self) -> None:
        """Close all files, complete or not, and stop the threads."""
        self._thread.shutdown(wait=True)
        self._fingerprint_thread.shutdown(wait=True)
        for stream in self.streams.values():
            stream.discard()

    def _write_pending(self) -> None:
        self._await_write()
        self._write_batch(self._batch)

    def _submit_batch(self) -> None:
        """Let the thread write the filled batch, and continue with the spare batch."""
        self._await_write()
        self._pending_write = self._thread.submit(self._write_batch, self._batch)
        self._batch, self._spare = self._spare or self._new_batch(), self._batch

    def _await_write(self) -> None:
        if self._pending_write is not None:
            self._pending_write.result()
            self._pending_write = None

    def _write_batch(self, batch: _Batch) -> None:
        """Check, summarize and write a batch. Runs in the thread, except for the last rows."""
        if not batch.filled:
            return
        fingerprints = self._fingerprint_thread.submit(self._write_fingerprints, batch)
        count = batch.filled
        columns = batch.rows.columns
        numbers = np.array(batch.extent_episodes, np.int32)
        columns[EPISODE][:count] = np.repeat(numbers, [length for _, length in batch.extents])
        done = columns[NEXT_DONE][:count]
        np.logical_or(columns[NEXT_TERMINATED][:count], columns[NEXT_TRUNCATED][:count], out=done)
        self._check_flags(done[:, 0], batch.ends)
        self._sum_rewards(columns[NEXT_REWARD][:count, 0], batch, numbers)
        for key, moments in self._new_moments.items():
            moments.update(columns[key][:count])
        self.streams[ROWS_FILE].append(batch.rows.records[:count])
        if FINAL_FILE in self.streams:
            self.streams[FINAL_FILE].append(batch.final_states.records[: batch.ended])
        for key, values in batch.rows.wide.items():
            self._writers[key].append(values, count, final=False, deferred=batch.deferred)
        for key, values in batch.final_states.wide.items():
            self._writers[key].append(values, batch.ended, final=True)
        fingerprints.result()
        for records in (batch.rows, batch.final_states):
            for key, values in records.wide.items():
                self._writers[key].clear(values)
        batch.clear()

    def _write_fingerprints(self, batch: _Batch) -> None:
        """Compute and write the fingerprints of the episodes that end in a batch. Runs in a thread of its own."""
        if self._fingerprints is None:
            files = self._schema.array_files
            for name in (FINGERPRINTS_FILE, SKETCHES_FILE):
                self.streams[name].append(np.zeros((batch.ended, *files[name].shape), files[name].dtype))
            return
        records, sketches, missing = self._fingerprints.add(
            batch.rows.columns, batch.final_states.columns, batch.extents, batch.ends
        )
        if missing.any():
            last_rows, ends = [start + length - 1 for start, length in batch.extents], {*batch.ends}
            runs = zip(batch.extent_episodes, last_rows, strict=True)
            ended = [episode for episode, last in runs if last in ends]
            self.stale |= {ended[number] for number in np.flatnonzero(missing).tolist()}
        self.streams[FINGERPRINTS_FILE].append(records)
        self.streams[SKETCHES_FILE].append(sketches)

    def _check_flags(self, done: NDArray[np.bool_], ends: list[int]) -> None:
        expected = np.zeros(len(done), np.bool_)
        expected[ends] = True
        wrong = np.flatnonzero(done != expected)
        if len(wrong):
            row = int(wrong[0])
            problem = "has no flag at the end" if expected[row] else "has an end flag before the end"
            where = f"row {self.streams[ROWS_FILE].rows + row}"
            raise ConversionError(self._name, [f"{where}: the episode {problem} (and {len(wrong) - 1} more rows)"])

    def _sum_rewards(self, rewards: NDArray[Any], batch: _Batch, numbers: NDArray[np.int32]) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # a NaN or infinite reward gives a NaN or infinite return
            sums = np.add.reduceat(rewards.astype(np.float64), [start for start, _ in batch.extents])
        returns = np.zeros(len(batch.ends) + 1)
        np.add.at(returns, numbers - numbers[0], sums)
        returns[0] += self.open_return
        # The last entry belongs to the episode that is still open, if any.
        self.open_return = float(returns[-1])
        self._returns.append(returns[:-1])


class _Batch:
    """Buffer for steps, the final states of the episodes that end among the steps, and the extents of the episodes."""

    def __init__(self, schema: Schema, capacity: int, writers: Mapping[Key, FieldWriter]) -> None:
        shared = [field for field in schema if field.shared]
        self.capacity = capacity
        self.rows = _RecordBuffer(schema, schema.record, capacity, writers)
        self.final_states = _RecordBuffer(shared, schema.final_record, capacity, writers)
        # Start and length of each run of rows of the same episode, the number of that episode, the last row of each
        # episode that ends in this batch, and the rows that will be patched.
        self.extents: list[tuple[int, int]] = []
        self.extent_episodes: list[int] = []
        self.ends: list[int] = []
        self.deferred: list[int] = []
        self.filled = self.ended = 0

    def clear(self) -> None:
        """Empty the batch and keep the memory."""
        self.filled = self.ended = 0
        for extents in (self.extents, self.extent_episodes, self.ends, self.deferred):
            extents.clear()


class _RecordBuffer:
    """Buffer for `capacity` records and as many items of each wide field."""

    def __init__(
        self, fields: Iterable[Field], record: np.dtype[np.void], capacity: int, writers: Mapping[Key, FieldWriter]
    ) -> None:
        self.records = np.zeros(capacity, record)
        self.columns: dict[Key, Any] = {}
        """Memory of each field."""
        self.wide: dict[Key, Any] = {}
        """Memory of each field that has separate files."""
        for field in fields:
            if field.wide:
                self.wide[field.key] = self.columns[field.key] = writers[field.key].new_buffer(capacity)
            else:
                self.columns[field.key] = self.records[field.name]


def _reordered(records: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return records with the same fields at other offsets."""
    result = np.zeros(len(records), dtype)
    for name in dtype.names or ():
        result[name] = records[name]
    return result


def _open_streams(
    folder: Path,
    schema: Schema,
    steps: int | None,
    written: tuple[int, int, Mapping[str, int]] | None,
    *,
    hashed: bool,
) -> dict[str, NpyStream]:
    """Open all files. `written` has the rows, the episodes and, by file, the items to keep."""
    streams = {}
    with disk.disk_errors(folder):
        for name, file in schema.array_files.items():
            streams[name] = NpyStream(
                folder / name,
                file.dtype,
                file.shape,
                expected=steps if file.per == "step" else None,
                written=written and (file.count(*written[:2]) if file.counted else written[2][name]),
                # The window of the last row, a record and the shared fields of the next record, stays inside the file.
                trailing=schema.record_bytes if name == ROWS_FILE else 0,
                hashed=hashed,
            )
    return streams
