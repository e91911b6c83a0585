"""Writer of datasets: from episodes to the files of a dataset, in batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.format.digests import range_digests, stored_file, write_digests
from datasets_rl.format.manifest import StoredFile, missing_field_problems
from datasets_rl.format.npy import NpyStream, open_npy, take_fields, unfinished_blocks
from datasets_rl.format.schema import ROWS_FILE, Column, Field, Schema
from datasets_rl.format.statistics import Moments, episode_statistics, field_quantiles, has_statistics
from datasets_rl.progress import Report
from datasets_rl.read.images import read_header
from datasets_rl.ted.episode import DeferredStates, EncodedImages, Episode, TextStates, Values, zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import (
    EPISODE,
    NEXT_DONE,
    NEXT_REWARD,
    NEXT_TERMINATED,
    NEXT_TRUNCATED,
    OBSERVATION,
    Key,
    dotted_name,
)
from datasets_rl.ted.steps import split_states
from datasets_rl.ted.table import EPISODE_DTYPE, EpisodeTable

Commit = Mapping[str, Any]
"""State of a `DatasetWriter` at a commit, as a JSON value."""

EPISODES_FILE = "episodes.npy"
_BLOCK_BYTES = 2 << 20  # fits the second-level cache, which halves the cost of the passes over a batch
_BLOCK_STEPS = 1 << 16
_COPY_BYTES = 256 << 10  # fits the cache of a core: copying a file in larger blocks takes nearly twice as long
_FLAG = np.dtype(np.bool_)
_END = np.dtype(np.int64)
_OWN_COLUMNS = (
    Column(NEXT_DONE, _FLAG, (1,)),
    Column(EPISODE, np.dtype(np.int32), (), memory_dtype=np.dtype(np.int64)),
)


def schema_of_columns(columns: Sequence[Column]) -> Schema:
    """Return the schema by which a `DatasetWriter` stores these columns, with those that it adds itself."""
    return Schema.layout([*columns, *_OWN_COLUMNS])


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    """Result of a completed `DatasetWriter`: the values for the manifest."""

    schema: Schema
    files: tuple[StoredFile, ...]
    steps: int
    episodes: int
    final_unknown: int
    statistics: Mapping[str, Any]


class DatasetWriter:
    """Writer of episodes into a folder: rows.npy, final.npy, one file per wide field, episodes.npy.

    The writer adds ``("next", "done")`` and ``("episode",)``; rewards are floating point, as `Episode` has them. It checks the flags: the last step of every episode has
    ``terminated`` or ``truncated``, and no other step has either.

    Args:
        folder: An empty folder, or the folder of `commits`.
        columns: The columns of a step.
        name: Name of the dataset, for messages.
        steps: Total number of steps, if known.
        commits: Results of `commit` in an earlier process, in order. The writer continues after the last one.

    Raises:
        InvalidArgumentError: If the columns contradict each other, or the reward or a flag is missing.
        IntegrityError: If the folder does not have the committed rows.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[Column],
        *,
        name: str,
        steps: int | None = None,
        commits: Sequence[Commit] = (),
    ) -> None:
        self.schema = schema_of_columns(columns)
        missing = [*missing_field_problems(self.schema)]
        if missing:
            raise InvalidArgumentError(f"{name} cannot be written: {'; '.join(missing)}")
        self._folder = folder
        self._name = name
        self._shared = [field for field in self.schema if field.shared]
        self._step_fields = [
            field for field in self.schema if not field.shared and field.key not in {NEXT_DONE, EPISODE}
        ]
        widest = max(self.schema.record_bytes, *(_buffered_bytes(field) for field in self.schema))
        capacity = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // widest))
        # Double buffering: one batch is filled while the thread checks, summarizes and writes the other.
        self._batch, self._spare = _Batch(self.schema, capacity), _Batch(self.schema, capacity)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rlds-write")
        self._pending_write: Future[None] | None = None
        self._moments = self._empty_moments()
        # Moments since the last commit are merged at a commit, so a commit and `append_partial` sum in the same order.
        self._new_moments = self._empty_moments()
        self._steps = 0
        self._episode = 0
        self._open_steps = 0
        self._open_return = 0.0
        self._lengths: list[int] = []
        self._final_known: list[bool] = []
        self._returns: list[NDArray[np.float64]] = []
        self._metadata = _Metadata()
        # Code 0 is the empty text, so the zeros of an unknown final state read as an empty text.
        self._vocabulary: dict[Key, dict[str, int]] = {field.key: {"": 0} for field in self.schema if field.text}
        self._committed = (0, dict.fromkeys(self._vocabulary, 1))
        for commit in commits:
            self._restore(commit)
        written = (self._steps, self._episode, commits[-1]["rows"]) if commits else None
        self._streams = _open_streams(folder, self.schema, steps, written)

    def _empty_moments(self) -> dict[Key, Moments]:
        return {field.key: Moments(field.shape) for field in self.schema if has_statistics(field)}

    def _merge_moments(self) -> None:
        for key, moments in self._moments.items():
            moments.merge(self._new_moments[key].state())
        self._new_moments = self._empty_moments()

    def _restore(self, commit: Commit) -> None:
        self._steps, self._open_steps, self._open_return = commit["steps"], commit["open_steps"], commit["open_return"]
        self._restore_episodes(commit)
        self._metadata.mark_committed()
        for key, moments in self._moments.items():
            moments.restore(commit["moments"][dotted_name(key)])
        for key, vocabulary in self._vocabulary.items():
            new_words = commit["words"][dotted_name(key)]
            vocabulary.update({word: len(vocabulary) + index for index, word in enumerate(new_words)})
        self._committed = (self._episode, {key: len(vocabulary) for key, vocabulary in self._vocabulary.items()})

    def _restore_episodes(self, commit: Commit) -> None:
        self._lengths += commit["lengths"]
        self._final_known += [bool(known) for known in commit["known"]]
        self._returns.append(np.array(commit["returns"], np.float64))
        columns = {name: np.array(values, dtype) for name, (dtype, values) in commit["facts"].items()}
        self._metadata.extend(columns, len(commit["lengths"]))
        self._episode = len(self._lengths)

    def commit(self, *, sync: bool = True) -> Commit:
        """Flush all appended rows, and return the state from which another process can continue.

        Args:
            sync: Whether to wait for the disk. If False, the rows are visible to other processes but can be lost if the
                machine fails.

        Returns:
            The changes since the previous commit, as a JSON value with NaN and infinity. A writer that continues needs
            the results of all commits.
        """
        self._submit_batch()
        self._await_write()
        self._merge_moments()
        files = {name: stream.flush(sync=sync) for name, stream in self._streams.items()}
        episodes, vocabulary_sizes = self._committed
        self._committed = (self._episode, {key: len(vocabulary) for key, vocabulary in self._vocabulary.items()})
        # Join the arrays of all batches, so that the returns of the new episodes are one slice.
        self._returns = [np.concatenate(self._returns)] if self._returns else []
        returns = self._returns[0][episodes:].tolist() if self._returns else []
        metadata = self._metadata.uncommitted_columns()
        self._metadata.mark_committed()
        return {
            "files": files,
            "steps": self._steps,
            "open_steps": self._open_steps,
            "open_return": self._open_return,
            "lengths": self._lengths[episodes:],
            "known": self._final_known[episodes:],
            "returns": returns,
            "facts": {name: (column.dtype.str, column.tolist()) for name, column in metadata.items()},
            "moments": {dotted_name(key): moments.state() for key, moments in self._moments.items()},
            "rows": {name: stream.rows for name, stream in self._streams.items()},
            "words": {
                dotted_name(key): [*vocabulary][vocabulary_sizes[key] :] for key, vocabulary in self._vocabulary.items()
            },
        }

    def append(self, episode: Episode) -> None:
        """Append an episode, or the next piece of one.

        Raises:
            ConversionError: If a column is missing or has a length, shape or dtype that contradicts the schema, or a
                flag is set inside an episode or missing at its end.
        """
        episode = self._with_codes(episode) if self._vocabulary else episode
        steps = self._check_episode(episode)
        taken = 0
        while taken < steps:
            batch = self._batch
            count = min(batch.capacity - batch.filled, steps - taken)
            self._copy_rows(batch, episode, taken, count)
            taken += count
            if taken == steps and not episode.continues:
                self._end_episode(batch, episode, steps)
            if batch.filled == batch.capacity:
                self._submit_batch()

    def patch(self, deferred: DeferredStates) -> None:
        """Overwrite the placeholder zeros of deferred states, in a row that was appended after the last commit."""
        self._submit_batch()
        self._await_write()
        for key, state in deferred.states.items():
            self._streams[self.schema[key].file].patch(self._steps - deferred.rows_ago, state)

    def extend(self, episodes: EpisodeBatch) -> None:
        """Append whole episodes.

        Raises:
            ConversionError: If an episode has no step, or a column or a flag is wrong, as in `append`.
        """
        self._check_batch(episodes)
        stops = np.cumsum(episodes.lengths)
        count, taken = episodes.count, 0
        codes = {
            key: self._codes_of(self._vocabulary[key], TextStates(np.arange(len(texts)), tuple(texts)))
            for key, texts in episodes.vocabulary.items()
            if key in self._vocabulary
        }
        while taken < count:
            batch = self._batch
            stop = taken + min(batch.capacity - batch.filled, count - taken)
            first, last = np.searchsorted(stops, [taken, stop - 1], side="right")
            self._copy_batch(batch, episodes, codes, slice(taken, stop), slice(first, last + 1), stops)
            taken = stop
            if batch.filled == batch.capacity:
                self._submit_batch()

    def _copy_batch(
        self,
        batch: _Batch,
        block: EpisodeBatch,
        codes: Mapping[Key, NDArray[np.int32]],
        rows: slice,
        episodes: slice,
        stops: NDArray[np.int64],
    ) -> None:
        """Copy rows, and the final states of the episodes that end among them, into a batch.

        Args:
            batch: The batch, with enough free rows.
            block: The episodes.
            codes: By text field, this dataset's code of each code in `block`.
            rows: Rows of `block` to copy.
            episodes: Episodes of `block` with at least one of these rows.
            stops: Row after the last row of each episode, [E].
        """

        def recoded(key: Key, values: NDArray[Any]) -> NDArray[Any]:
            return codes[key][values] if key in codes else values

        shift = batch.filled - rows.start
        target = slice(batch.filled, rows.stop + shift)
        for fields, values in ((self._step_fields, block.steps), (self._shared, block.states)):
            for field in fields:
                batch.rows.columns[field.key][target] = _as_stored_items(
                    recoded(field.key, values[field.key][rows]), field
                )
        starts = np.maximum(stops[episodes] - block.lengths[episodes], rows.start)
        ends = np.minimum(stops[episodes], rows.stop)
        complete = stops[episodes] <= rows.stop
        batch.chunks += zip((starts + shift).tolist(), (ends - starts).tolist(), strict=True)
        batch.chunk_episodes += range(self._episode, self._episode + len(starts))
        batch.ends += (ends[complete] + shift - 1).tolist()
        completed = slice(episodes.start, episodes.start + int(complete.sum()))
        targets = slice(batch.ended, batch.ended + int(complete.sum()))
        for field in self._shared:
            final_states = recoded(field.key, block.final_states[field.key][completed])
            batch.final_states.columns[field.key][targets] = _as_stored_items(
                zero_unknown_states(final_states, block.final_known[completed]), field
            )
        batch.ended, batch.filled = targets.stop, target.stop
        self._steps += rows.stop - rows.start
        self._lengths += block.lengths[completed].tolist()
        self._final_known += block.final_known[completed].tolist()
        self._metadata.extend(
            {name: values[completed].copy() for name, values in block.metadata.items()},
            completed.stop - completed.start,
        )
        self._episode += targets.stop - targets.start
        self._open_steps = (
            0 if complete[-1] else int(ends[-1] - starts[-1]) + (self._open_steps if len(starts) == 1 else 0)
        )

    def _check_batch(self, batch: EpisodeBatch) -> None:
        problems = []
        if self._open_steps:
            problems.append("the previous episode is not complete")
        if not len(batch) or (batch.lengths < 1).any():
            problems.append("expected at least one episode, and none without a step")
        for kind, fields, arrays, count in (
            ("steps", self._step_fields, batch.steps, batch.count),
            ("states", self._shared, batch.states, batch.count),
            ("final_states", self._shared, batch.final_states, len(batch)),
        ):
            expected = {field.key: (field.dtype, (count, *field.shape)) for field in fields}
            for key in expected.keys() | arrays.keys():
                actual = (arrays[key].dtype, arrays[key].shape) if key in arrays else None
                if key in expected and self.schema[key].encoded and not isinstance(arrays.get(key), EncodedImages):
                    problems.append(f"{kind} has {dotted_name(key)} decoded; expected encoded images")
                elif actual != expected.get(key):
                    problems.append(
                        f"{kind} has {dotted_name(key)} as {_dtype_and_shape(actual)}; "
                        f"expected {_dtype_and_shape(expected.get(key))}"
                    )
        if problems:
            where = f"the episodes from {self._episode} (from row {self._steps})"
            raise ConversionError(self._name, [f"{where}: {problem}" for problem in sorted(problems)])

    def append_partial(self, folder: Path, commit: Commit) -> None:
        """Append the rows of another writer of the same columns, with this writer's episode numbers and text codes.

        Args:
            folder: Folder of the other writer.
            commit: Result of its only `commit`.

        Raises:
            IntegrityError: If the folder does not have the committed rows.
        """
        self._submit_batch()
        self._await_write()
        codes = {
            key: self._codes_of(vocabulary, TextStates(np.arange(len(words) + 1), ("", *words)))
            for key, vocabulary in self._vocabulary.items()
            for words in [commit["words"][dotted_name(key)]]
        }
        self._merge_moments()
        shifts = self._end_shifts()
        for name, stream in self._streams.items():
            max_rows = max(1, _COPY_BYTES // stream.item_bytes)
            for block in unfinished_blocks(folder / name, stream.dtype, stream.shape, commit["rows"][name], max_rows):
                self._renumber(block, codes, shifts.get(name, 0))
                stream.append(block)
        for key, moments in self._moments.items():
            moments.merge(commit["moments"][dotted_name(key)])
        lengths, returns = list(commit["lengths"]), np.array(commit["returns"], np.float64)
        open_steps, open_return = commit["open_steps"], commit["open_return"]
        # An open episode of this writer continues with the first episode of the other writer, or remains open.
        if lengths:
            lengths[0] += self._open_steps
            returns[0] += self._open_return
        else:
            open_steps, open_return = open_steps + self._open_steps, open_return + self._open_return
        self._restore_episodes({**commit, "lengths": lengths, "returns": returns})
        self._steps += commit["steps"]
        self._open_steps, self._open_return = open_steps, open_return

    def _end_shifts(self) -> dict[str, int]:
        """Return, by file of end offsets, the bytes of the images written so far, which shift all appended ends."""
        encoded = [field for field in self.schema if field.encoded]
        shifts = {field.ends_file: self._streams[field.file].rows for field in encoded}
        return shifts | {
            field.final_ends_file: self._streams[field.final_file].rows for field in encoded if field.shared
        }

    def _renumber(self, records: NDArray[Any], codes: Mapping[Key, NDArray[np.int32]], shift: int) -> None:
        """Replace another writer's end offsets, episode numbers and text codes by this writer's, in place."""
        if shift:
            records += shift
        for name in records.dtype.names or ():
            key = tuple(name.split("."))
            if key == EPISODE:
                records[name] += self._episode
            elif key in codes:
                records[name] = codes[key][records[name]]

    def _with_codes(self, episode: Episode) -> Episode:
        """Return the piece with this dataset's codes in place of texts."""

        def coded(columns: Mapping[Key, Any]) -> Mapping[Key, Any]:
            return {
                key: self._codes_of(self._vocabulary[key], values)
                if key in self._vocabulary and isinstance(values, TextStates)
                else values
                for key, values in columns.items()
            }

        return replace(episode, steps=coded(episode.steps), states=coded(episode.states))

    @staticmethod
    def _codes_of(vocabulary: dict[str, int], texts: TextStates) -> NDArray[np.int32]:
        codes = np.array([vocabulary.setdefault(word, len(vocabulary)) for word in texts.vocabulary], np.int32)
        row_codes: NDArray[np.int32] = codes[texts.codes]
        return row_codes

    def _copy_rows(self, batch: _Batch, episode: Episode, first: int, count: int) -> None:
        start, stop = batch.filled, batch.filled + count
        columns = batch.rows.columns
        for fields, values in ((self._step_fields, episode.steps), (self._shared, episode.states)):
            for field in fields:
                columns[field.key][start:stop] = _as_array(values[field.key])[first : first + count]
        batch.chunks.append((start, count))
        batch.chunk_episodes.append(self._episode)
        batch.filled = stop
        self._open_steps += count
        self._steps += count

    def _end_episode(self, batch: _Batch, episode: Episode, steps: int) -> None:
        for field in self._shared:
            _, final = split_states(_as_array(episode.states[field.key]), steps)
            unknown = b"" if field.encoded else 0
            batch.final_states.columns[field.key][batch.ended] = unknown if final is None else final
        batch.ended += 1
        batch.ends.append(batch.filled - 1)
        self._lengths.append(self._open_steps)
        self._final_known.append(episode.final_known)
        self._metadata.append(episode.metadata)
        self._open_steps = 0
        self._episode += 1

    def _submit_batch(self) -> None:
        """Let the thread write the filled batch, and continue with the spare one."""
        batch = self._batch
        self._await_write()
        self._pending_write = self._thread.submit(self._write_batch, batch, self._episode, self._steps - batch.filled)
        self._batch, self._spare = self._spare, batch

    def _await_write(self) -> None:
        if self._pending_write is not None:
            self._pending_write.result()
            self._pending_write = None

    def _check_episode(self, episode: Episode) -> int:
        steps = len(episode) if episode.steps else 0
        problems = list(self._episode_problems(episode, steps))
        if problems:
            where = f"episode {self._episode} (from row {self._steps})"
            raise ConversionError(self._name, [f"{where}: {problem}" for problem in problems])
        return steps

    def _episode_problems(self, episode: Episode, steps: int) -> Iterator[str]:
        if not steps:
            yield "it has no step"
        if len(episode.steps) != len(self._step_fields) or len(episode.states) != len(self._shared):
            expected = sorted(field.name for field in (*self._step_fields, *self._shared))
            yield f"its columns are {sorted(map(dotted_name, (*episode.steps, *episode.states)))}; expected {expected}"
            return
        # A piece that continues has no final state: it is the first state of the next piece.
        max_states = steps if episode.continues else steps + 1
        for fields, arrays, max_rows in (
            (self._step_fields, episode.steps, steps),
            (self._shared, episode.states, max_states),
        ):
            for field in fields:
                array = arrays.get(field.key)
                if array is None:
                    yield f"{field.name} is missing"
                elif isinstance(array, EncodedImages) or field.encoded:
                    yield from _image_problems(field, array, steps, max_rows)
                elif isinstance(array, TextStates):
                    yield f"{field.name} is a text column; expected {field.dtype.name}"
                elif (
                    array.dtype != field.dtype or array.shape[1:] != field.shape or not steps <= len(array) <= max_rows
                ):
                    yield (
                        f"{field.name} is {array.dtype.name} {list(array.shape)}; "
                        f"expected {field.dtype.name} {[steps, *field.shape]}"
                    )
        has_final_state = {len(array) > steps for key, array in episode.states.items() if key[0] == OBSERVATION[0]}
        if len(has_final_state) > 1:
            yield "one observation has a state after the last action, another has none; expected all or none"

    def _write_batch(self, batch: _Batch, episode: int, first: int) -> None:
        """Check, summarize and write a batch that starts at row `first`; runs in the thread."""
        if not batch.filled:
            return
        count = batch.filled
        columns = batch.rows.columns
        numbers = np.array(batch.chunk_episodes, np.int32)
        columns[EPISODE][:count] = np.repeat(numbers, [length for _, length in batch.chunks])
        done = columns[NEXT_DONE][:count]
        np.logical_or(columns[NEXT_TERMINATED][:count], columns[NEXT_TRUNCATED][:count], out=done)
        self._check_flags(done[:, 0], batch.ends, first)
        self._sum_rewards(columns[NEXT_REWARD][:count, 0], batch, numbers, episode)
        for key, moments in self._new_moments.items():
            moments.update(columns[key][:count])
        for name, block in batch.rows.files(count):
            self._streams[name].append(block)
        for name, block in batch.final_states.files(batch.ended):
            self._streams["final.npy" if name == ROWS_FILE else f"final.{name}"].append(block)
        for field, images in batch.rows.images(count):
            self._append_images(field.file, field.ends_file, images)
        for field, images in batch.final_states.images(batch.ended):
            self._append_images(field.final_file, field.final_ends_file, images)
        batch.clear()

    def _append_images(self, file: str, ends_file: str, images: Sequence[bytes]) -> None:
        ends = self._streams[file].rows + np.cumsum([len(image) for image in images], dtype=np.int64)
        self._streams[file].append(np.frombuffer(b"".join(images), np.uint8))
        self._streams[ends_file].append(ends)

    def _check_flags(self, done: NDArray[np.bool_], ends: list[int], first: int) -> None:
        expected = np.zeros(len(done), np.bool_)
        expected[ends] = True
        wrong = np.flatnonzero(done != expected)
        if len(wrong):
            row = int(wrong[0])
            problem = "has no flag at its end" if expected[row] else "has an end flag before its end"
            raise ConversionError(
                self._name, [f"row {first + row}: its episode {problem} (and {len(wrong) - 1} more rows)"]
            )

    def _sum_rewards(self, rewards: NDArray[Any], batch: _Batch, numbers: NDArray[np.int32], episode: int) -> None:
        with np.errstate(invalid="ignore", over="ignore"):  # a NaN or infinite reward gives a NaN or infinite return
            sums = np.add.reduceat(rewards.astype(np.float64), [start for start, _ in batch.chunks])
        returns = np.zeros(episode - int(numbers[0]) + 1)
        np.add.at(returns, numbers - numbers[0], sums)
        returns[0] += self._open_return
        # The last entry belongs to the episode that is still open, if any.
        self._open_return = float(returns[-1])
        self._returns.append(returns[:-1])

    def finish(self) -> DatasetSummary:
        """Write the remaining rows and the episode table, and close all files.

        Raises:
            ConversionError: If no step was appended, or the last episode has no end.
        """
        self._submit_batch()
        self._await_write()
        self._merge_moments()
        if self._open_steps or not self._steps:
            problem = f"episode {self._episode} has no end" if self._open_steps else "it has no step"
            raise ConversionError(self._name, [problem])
        table = self._episode_records()
        # Among the streams, so that `discard` closes it if the disk is full.
        self._streams[EPISODES_FILE] = NpyStream(self._folder / EPISODES_FILE, table.dtype, expected=len(table))
        self._streams[EPISODES_FILE].append(table)
        files = [stream.close() for stream in self._streams.values()]
        ranges = {file.path: stream.ranges for file, stream in zip(files, self._streams.values(), strict=True)}
        for key, vocabulary in self._vocabulary.items():
            path = self._folder / self.schema[key].texts_file
            disk.write_json(path, [*vocabulary])
            ranges[path.name] = range_digests(path, Report())
            files.append(stored_file(path.name, path.stat().st_size, ranges[path.name]))
        files.append(write_digests(self._folder, ranges))
        statistics = {dotted_name(key): moments.to_json() for key, moments in self._moments.items()}
        # From the file, so that they are the same however the conversion was divided or interrupted.
        rows = open_npy(self._folder / ROWS_FILE, self.schema.record, (self._steps,))
        for name, numbers in field_quantiles(self.schema, self._steps, partial(take_fields, rows)).items():
            statistics[name] |= numbers
        statistics |= episode_statistics(EpisodeTable(table))
        return DatasetSummary(
            schema=self.schema,
            files=tuple(sorted(files, key=lambda entry: entry.path)),
            steps=self._steps,
            episodes=len(table),
            final_unknown=int((~table["final_known"]).sum()),
            statistics=statistics,
        )

    def _episode_records(self) -> NDArray[np.void]:
        metadata = self._metadata.columns()
        extra = [(name, values.dtype) for name, values in metadata.items() if name != "source"]
        table = np.zeros(len(self._lengths), np.dtype([*EPISODE_DTYPE.descr, *extra]))
        table["length"] = self._lengths
        table["start"] = np.cumsum(table["length"]) - table["length"]
        table["return"] = np.concatenate(self._returns)
        table["final_known"] = self._final_known
        table["source"] = np.arange(len(table))
        for name, values in metadata.items():
            table[name] = values
        return table

    def discard(self) -> None:
        """Close all files, complete or not, and stop the thread."""
        self._thread.shutdown(wait=True)
        for stream in self._streams.values():
            stream.discard()


def _as_array(column: Values) -> Any:
    if isinstance(column, EncodedImages):
        return column.images
    return column.codes if isinstance(column, TextStates) else column


def _as_stored_items(column: Any, field: Field) -> Any:
    """Return the values to store in a batch: an array, or a list of encoded images."""
    return column.images if field.encoded else column


def _dtype_and_shape(array: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return "nothing" if array is None else f"{array[0].name} {list(array[1])}"


def _buffered_bytes(field: Field) -> int:
    # Measured: encoded images have a tenth (JPEG) to a half (PNG) of the bytes of their pixels.
    return field.step_bytes // 8 if field.encoded else field.step_bytes


def _image_problems(field: Field, column: Any, min_images: int, max_images: int) -> Iterator[str]:
    if not isinstance(column, EncodedImages) or not field.encoded:
        expected = "encoded images" if field.encoded else field.dtype.name
        yield f"{field.name} holds {type(column).__name__}; expected {expected}"
    elif not min_images <= len(column) <= max_images:
        yield f"{field.name} has {len(column)} images; expected {min_images}"
    else:
        for number, encoded in enumerate(column.images):
            try:
                image = read_header(encoded)
            except ConversionError as error:
                yield f"{field.name}: image {number} {error.problems[0]}"
                continue
            if (image.shape, image.dtype) != (field.shape, field.dtype):
                expected = f"{field.dtype.name} {list(field.shape)}"
                yield f"{field.name}: image {number} is {image.dtype.name} {list(image.shape)}; expected {expected}"


class _Metadata:
    """Metadata of episodes, in runs of episodes that were appended in the same way."""

    def __init__(self) -> None:
        self._runs: list[tuple[int, Mapping[str, Any]]] = []
        self._episodes: list[Mapping[str, Any]] = []
        self._committed = 0

    def append(self, metadata: Mapping[str, Any]) -> None:
        """Add an episode."""
        self._episodes.append(metadata)

    def extend(self, columns: Mapping[str, NDArray[Any]], count: int) -> None:
        """Add episodes, given one column per name, [count]."""
        self._close_run()
        if count:
            self._runs.append((count, columns))

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the metadata of all E episodes as one column per name, [E]; missing values are 0."""
        self._close_run()
        return _joined_columns(self._runs)

    def uncommitted_columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns of the episodes that were added after those that are marked as committed."""
        self._close_run()
        return _joined_columns(self._runs[self._committed :])

    def mark_committed(self) -> None:
        """Mark all episodes as committed."""
        self._close_run()
        self._committed = len(self._runs)

    def _close_run(self) -> None:
        names = dict.fromkeys(name for metadata in self._episodes for name in metadata)
        columns = {name: [metadata.get(name, 0) for metadata in self._episodes] for name in names}
        if self._episodes:
            self._runs.append((len(self._episodes), columns))
        self._episodes = []


def _joined_columns(runs: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, NDArray[Any]]:
    names = dict.fromkeys(name for _, columns in runs for name in columns)
    return {name: _joined_values([columns.get(name, [0] * count) for count, columns in runs]) for name in names}


def _joined_values(runs: Sequence[Any]) -> NDArray[Any]:
    arrays = [np.asarray(values) for values in runs]
    if len({array.dtype for array in arrays}) == 1 and arrays[0].dtype.kind in "biuf":
        return np.concatenate(arrays)
    # The common dtype depends on all values: an integer beyond 63 bits makes all others unsigned, and no floats.
    return np.array([value for values in runs for value in values])


class _Batch:
    """Buffer for steps, the final states of the episodes that end among them, and the extents of the episodes."""

    def __init__(self, schema: Schema, capacity: int) -> None:
        shared = [field for field in schema if field.shared]
        self.capacity = capacity
        self.rows = _RecordBuffer(schema.narrow, schema.wide, schema.record, capacity)
        self.final_states = _RecordBuffer(
            [field for field in shared if not field.wide],
            [field for field in shared if field.wide],
            schema.final_record,
            capacity,
        )
        # Start and length of each run of rows of one episode, the number of that episode, and the last row of each
        # episode that ends in this batch.
        self.chunks: list[tuple[int, int]] = []
        self.chunk_episodes: list[int] = []
        self.ends: list[int] = []
        self.filled = self.ended = 0

    def clear(self) -> None:
        """Empty the batch; its memory is reused."""
        self.filled = self.ended = 0
        for extents in (self.chunks, self.chunk_episodes, self.ends):
            extents.clear()


class _RecordBuffer:
    """Buffer for `capacity` records and as many items of each wide field."""

    def __init__(
        self, narrow: Sequence[Field], wide: Sequence[Field], record: np.dtype[np.void], capacity: int
    ) -> None:
        self._records = np.zeros(capacity, record)
        unencoded = [field for field in wide if not field.encoded]
        self._wide = {field.file: np.zeros((capacity, *field.shape), field.dtype) for field in unencoded}
        self._images: dict[Field, list[bytes]] = {field: [b""] * capacity for field in wide if field.encoded}
        self._has_records = bool(narrow)
        self.columns: dict[Key, Any] = {field.key: self._records[field.name] for field in narrow}
        self.columns |= {field.key: self._wide[field.file] for field in unencoded}
        self.columns |= {field.key: images for field, images in self._images.items()}

    def files(self, count: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the name of each array file and its first `count` items."""
        if self._has_records:
            yield ROWS_FILE, self._records[:count]
        for name, items in self._wide.items():
            yield name, items[:count]

    def images(self, count: int) -> Iterator[tuple[Field, list[bytes]]]:
        """Yield each field of encoded images with its first `count` images."""
        for field, images in self._images.items():
            yield field, images[:count]


def _open_streams(
    folder: Path, schema: Schema, steps: int | None, written: tuple[int, int, Mapping[str, int]] | None
) -> dict[str, NpyStream]:
    """Open all files; `written` has the rows, the episodes and, by file, the bytes of images to keep."""
    rows, ended, image_bytes = written or (None, None, {})
    with disk.disk_errors(folder):
        # The window of the last row, the record and the shared fields of the next one, stays inside the file.
        rows_file = NpyStream(
            folder / ROWS_FILE, schema.record, expected=steps, written=rows, trailing=schema.record_bytes
        )
        streams = {ROWS_FILE: rows_file}
        if any(field.shared for field in schema.narrow):
            streams["final.npy"] = NpyStream(folder / "final.npy", schema.final_record, written=ended)
        for field in schema.wide:
            if field.encoded:
                pairs = (
                    (field.file, field.ends_file, steps, rows),
                    (field.final_file, field.final_ends_file, None, ended),
                )
                for name, ends, expected, kept_rows in pairs[: 1 + field.shared]:
                    streams[name] = NpyStream(folder / name, field.dtype, written=image_bytes.get(name))
                    streams[ends] = NpyStream(folder / ends, _END, expected=expected, written=kept_rows)
                continue
            streams[field.file] = NpyStream(folder / field.file, field.dtype, field.shape, steps, rows)
            if field.shared:
                streams[field.final_file] = NpyStream(
                    folder / field.final_file, field.dtype, field.shape, written=ended
                )
        return streams
