"""Writer of datasets: from episodes to the files of a dataset, in batches, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk
from datasets_rl.errors import ConversionError, InvalidArgumentError
from datasets_rl.fingerprints.fingerprint import FINGERPRINTS_FILE, SKETCHES_FILE
from datasets_rl.format.digests import range_digests, stored_file, write_digests
from datasets_rl.format.episode_log import EPISODES_FILE, EpisodeLog
from datasets_rl.format.fingerprints import computed_fingerprints
from datasets_rl.format.images.base import FieldWriter, Renumber
from datasets_rl.format.manifest import Manifest, StoredFile, missing_field_problems
from datasets_rl.format.npy import NpyStream, open_npy, take_fields
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.row_sink import Chunk, RowSink
from datasets_rl.format.schema import ROWS_FILE, Column, Schema
from datasets_rl.format.spikes import spikes
from datasets_rl.format.statistics import episode_statistics, field_quantiles
from datasets_rl.progress import Report
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.ted.episode import DeferredStates, Episode, TextStates, Values, zero_unknown_states
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key, dotted_name, is_observation
from datasets_rl.ted.table import EpisodeTable

Commit = Mapping[str, Any]
"""State of a `DatasetWriter` at a commit, as a JSON value."""

_BLOCK_BYTES = 2 << 20  # fits the second-level cache, which halves the cost of the passes over a batch
_BLOCK_STEPS = 1 << 16
_FLAG = np.dtype(np.bool_)
_OWN_COLUMNS = (
    Column(NEXT_DONE, _FLAG, (1,)),
    Column(EPISODE, np.dtype(np.int32), (), memory_dtype=np.dtype(np.int64)),
)


def schema_of_columns(columns: Sequence[Column]) -> Schema:
    """Return the schema by which a `DatasetWriter` stores these columns, with the columns that the writer adds."""
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
    spikes: tuple[str, ...]


class DatasetWriter:
    """Writer of episodes into a folder: rows.npy, final.npy, one file per wide field, episodes.npy.

    The writer adds ``("next", "done")`` and ``("episode",)``. Rewards are floating point, as in `Episode`. The writer
    checks the flags: the last step of every episode has ``terminated`` or ``truncated``, and no other step has either.

    Args:
        folder: An empty folder, or the folder of `commits`.
        columns: The columns of a step.
        name: Name of the dataset, for messages.
        steps: Total number of steps, if known.
        commits: Results of `commit` in an earlier process, in order. The writer continues after the last of these.
        dictionaries: The dictionary of each field of compressed images. With `commits`, the dictionaries in the folder
            are used.
        summarized: Whether the rows get digests, statistics and fingerprints, without which the dataset cannot be checked.

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
        dictionaries: Mapping[Key, FrameDictionary] | None = None,
        summarized: bool = True,
    ) -> None:
        self._summarized = summarized
        self.schema = schema_of_columns(columns)
        if missing := [*missing_field_problems(self.schema)]:
            raise InvalidArgumentError(f"{name} cannot be written: {'; '.join(missing)}")
        self._folder = folder
        self._name = name
        self._shared = [field for field in self.schema if field.shared]
        self._step_fields = [
            field for field in self.schema if not field.shared and field.key not in {NEXT_DONE, EPISODE}
        ]
        self._open_steps = 0
        self._log = EpisodeLog(field.key for field in self.schema if field.text)
        for commit in commits:
            self._log.restore(commit)
        widest = max(self.schema.record_bytes, *(field.image_form.buffered_bytes for field in self.schema))
        capacity = max(1, min(_BLOCK_STEPS, _BLOCK_BYTES // widest))
        written = (commits[-1]["steps"], len(self._log), commits[-1]["rows"]) if commits else None
        given = {} if commits else dictionaries or {}
        self._writers: dict[Key, FieldWriter] = {
            field.key: field.image_form.writer(folder, given.get(field.key)) for field in self.schema
        }
        self._sink = RowSink(
            folder,
            self.schema,
            capacity,
            name=name,
            steps=steps,
            written=written,
            writers=self._writers,
            texts=lambda key: [*self._log.vocabulary[key]],
            summarized=summarized,
        )
        for key, writer in self._writers.items():
            earlier = [entry for commit in commits for entry in commit["videos"].get(dotted_name(key), ())]
            writer.open(self._sink.streams, earlier)
        if commits:
            self._open_steps, self._sink.open_return = commits[-1]["open_steps"], commits[-1]["open_return"]
            self._sink.stale |= set(commits[-1]["stale"])
            self._mark_open_episode()
            for key, moments in self._sink.moments.items():
                moments.restore(commits[-1]["moments"][dotted_name(key)])

    @property
    def bytes(self) -> int:
        """Bytes of the rows and final states that were written, without videos."""
        return sum(stream.rows * stream.item_bytes for stream in self._sink.streams.values())

    @property
    def episodes(self) -> int:
        """Number of complete episodes that were appended."""
        return len(self._log)

    def commit(self, *, sync: bool = True) -> Commit:
        """Flush all appended rows, and return the state from which another process can continue.

        Args:
            sync: Whether to wait for the disk. If False, the rows are visible to other processes but can be lost if the
                machine fails.

        Returns:
            The changes since the previous commit, as a JSON value with NaN and infinity. A writer that continues needs
            the results of all commits.
        """
        self._log.add_returns(self._sink.drain())
        files = {name: stream.flush(sync=sync) for name, stream in self._sink.streams.items()}
        for writer in self._writers.values():
            files |= writer.files()
        entries = {dotted_name(key): writer.commit(sync=sync) for key, writer in self._writers.items()}
        return {
            "files": files,
            "videos": {name: videos for name, videos in entries.items() if videos is not None},
            "steps": self._sink.rows,
            "open_steps": self._open_steps,
            "open_return": self._sink.open_return,
            "stale": sorted(self._sink.stale),
            "moments": {dotted_name(key): moments.state() for key, moments in self._sink.moments.items()},
            "rows": {name: stream.rows for name, stream in self._sink.streams.items()},
            **self._log.commit(),
        }

    def append(self, episode: Episode) -> None:
        """Append an episode, or the next piece of an episode.

        Raises:
            ConversionError: If a column is missing or has a length, shape or dtype that contradicts the schema, or a
                flag is set inside an episode or missing at its end.
        """
        columns: dict[Key, Any] = {**episode.steps, **episode.states}
        for key in self._log.vocabulary:
            if isinstance(texts := columns.get(key), TextStates):
                columns[key] = self._log.codes(key, texts.vocabulary)[texts.codes]
        steps = self._check_episode(episode, columns)
        stored = {key: self._writers[key].stored_values(column) for key, column in columns.items()}
        ended = not episode.continues
        final_states = {
            field.key: self._final_state(field.key, stored[field.key], steps) for field in self._shared if ended
        }
        chunk = Chunk(steps, stored, [steps] if ended else [], final_states, episode.deferred)
        self._sink.append(chunk, len(self._log))
        self._open_steps += steps
        if ended:
            self._log.append(self._open_steps, episode.metadata, final_known=episode.final_known)
            self._open_steps = 0

    def patch(self, deferred: DeferredStates) -> None:
        """Overwrite the zeros of the states of the last deferred row, which was appended after the last commit."""
        self._sink.patch(self._sink.rows - deferred.rows_ago, deferred.states)

    def extend(self, episodes: EpisodeBatch) -> None:
        """Append whole episodes.

        Raises:
            ConversionError: If an episode has no step, or a column or a flag is wrong, as in `append`.
        """
        self._check_batch(episodes)
        codes = {
            key: self._log.codes(key, texts)
            for key, texts in episodes.vocabulary.items()
            if key in self._log.vocabulary
        }

        def coded(columns: Mapping[Key, Any]) -> dict[Key, Any]:
            return {key: codes[key][values] if key in codes else values for key, values in columns.items()}

        columns = coded({**episodes.steps, **episodes.states})
        known = episodes.final_known
        final_states = {key: zero_unknown_states(values, known) for key, values in coded(episodes.final_states).items()}
        chunk = Chunk(
            episodes.count,
            {key: self._writers[key].stored_values(column) for key, column in columns.items()},
            np.cumsum(episodes.lengths).tolist(),
            {key: self._writers[key].stored_values(column) for key, column in final_states.items()},
        )
        self._sink.append(chunk, len(self._log))
        metadata = {name: values.copy() for name, values in episodes.metadata.items()}
        self._log.extend(episodes.lengths.tolist(), known.tolist(), metadata)

    def append_partial(self, folder: Path, commit: Commit, schema: Schema | None = None) -> None:
        """Append the rows of another writer of the same columns, with this writer's episode numbers and text codes.

        Args:
            folder: Folder of the other writer.
            commit: Result of the only `commit` of the other writer.
            schema: Schema of the other writer, if the columns may have another order. By default this writer's schema.

        Raises:
            IntegrityError: If the folder does not have the committed rows.
        """
        self._log.add_returns(self._sink.drain())
        codes = {key: self._log.codes(key, ["", *commit["words"][dotted_name(key)]]) for key in self._log.vocabulary}
        changes: dict[str, Renumber] = {}
        for key, writer in self._writers.items():
            changes |= writer.merge(folder, commit.get("videos", {}).get(dotted_name(key), ()))
        first = len(self._log)
        self._mark_open_episode()
        self._sink.stale |= {first + episode for episode in commit["stale"]}

        def renumber(name: str, records: NDArray[Any]) -> None:
            """Replace the other writer's end offsets, packets, episode numbers and text codes by this writer's."""
            if name in changes:
                changes[name](records)
            if name == FINGERPRINTS_FILE:
                return
            for column in records.dtype.names or ():
                key = tuple(column.split("."))
                if key == EPISODE:
                    records[column] += first
                elif key in codes:
                    records[column] = codes[key][records[column]]

        merged = {name for name, file in self.schema.array_files.items() if file.listed}
        rows = {name: count for name, count in commit["rows"].items() if name not in merged}
        self._sink.append_stored(folder, rows, schema or self.schema, renumber)
        for key, moments in self._sink.moments.items():
            moments.merge(commit["moments"][dotted_name(key)])
        # An open episode of this writer continues with the first episode of the other writer, or remains open.
        lengths, returns = list(commit["lengths"]), list(commit["returns"])
        open_steps, open_return = self._open_steps, self._sink.open_return
        self._open_steps, self._sink.open_return = commit["open_steps"], commit["open_return"]
        if lengths:
            lengths[0] += open_steps
            returns[0] += open_return
        else:
            self._open_steps += open_steps
            self._sink.open_return += open_return
        self._log.add_commit({**commit, "lengths": lengths, "returns": returns})
        self._mark_open_episode()

    def _mark_open_episode(self) -> None:
        """Compute the fingerprint of the open episode, if any, from the files: its rows do not all pass the sink."""
        if self._open_steps:
            self._sink.stale.add(len(self._log))

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
                if key in expected and key in arrays and (wrong := self._writers[key].form.form_problem(arrays[key])):
                    problems.append(f"{kind} has {dotted_name(key)} as {wrong}")
                elif actual != expected.get(key):
                    problems.append(
                        f"{kind} has {dotted_name(key)} as {_dtype_and_shape(actual)}, "
                        f"expected {_dtype_and_shape(expected.get(key))}"
                    )
        if problems:
            where = f"the episodes from {len(self._log)} (from row {self._sink.rows})"
            raise ConversionError(self._name, [f"{where}: {problem}" for problem in sorted(problems)])

    def _check_episode(self, episode: Episode, columns: Mapping[Key, Values]) -> int:
        steps = len(episode) if episode.steps else 0
        if problems := list(self._episode_problems(episode, columns, steps)):
            where = f"episode {len(self._log)} (from row {self._sink.rows})"
            raise ConversionError(self._name, [f"{where}: {problem}" for problem in problems])
        return steps

    def _episode_problems(self, episode: Episode, columns: Mapping[Key, Values], steps: int) -> Iterator[str]:
        if not steps:
            yield "the episode has no step"
        if len(episode.steps) != len(self._step_fields) or len(episode.states) != len(self._shared):
            expected = sorted(field.name for field in (*self._step_fields, *self._shared))
            yield f"the columns are {sorted(map(dotted_name, (*episode.steps, *episode.states)))}, expected {expected}"
            return
        # A piece that continues has no final state: the final state is the first state of the next piece.
        max_states = steps if episode.continues else steps + 1
        for fields, keys, max_rows in (
            (self._step_fields, episode.steps, steps),
            (self._shared, episode.states, max_states),
        ):
            for field in fields:
                array = columns[field.key] if field.key in keys else None
                if array is None:
                    yield f"{field.name} is missing"
                else:
                    yield from self._writers[field.key].form.value_problems(array, steps, max_rows)
        has_final_state = {len(array) > steps for key, array in episode.states.items() if is_observation(key)}
        if len(has_final_state) > 1:
            yield "an observation has a state after the last action, another has none, expected all or none"

    def _final_state(self, key: Key, states: Any, steps: int) -> Any:
        """Return the state after the last of an episode's steps, [1, ...]. An unknown state is zeros or no bytes."""
        return states[steps:] if len(states) > steps else self._writers[key].unknown()

    def finish(self) -> DatasetSummary:
        """Write the remaining rows and the episode table, and close all files.

        Raises:
            ConversionError: If no step was appended, or the last episode has no end.
        """
        self._log.add_returns(self._sink.drain())
        steps, streams = self._sink.rows, self._sink.streams
        if self._open_steps or not steps:
            problem = f"episode {len(self._log)} has no end" if self._open_steps else "the dataset has no step"
            raise ConversionError(self._name, [problem])
        table = self._log.records()
        # Among the streams, so that `discard` closes it if the disk is full.
        streams[EPISODES_FILE] = NpyStream(self._folder / EPISODES_FILE, table.dtype, expected=len(table))
        streams[EPISODES_FILE].append(table)
        files = self._sink.close()
        ranges = {name: stream.ranges for name, stream in streams.items()}
        for key, vocabulary in self._log.vocabulary.items():
            disk.write_json(self._folder / self.schema[key].texts_file, [*vocabulary])
        whole = dict.fromkeys(self.schema.whole_files)
        for writer in self._writers.values():
            ranges |= writer.finish()
            whole |= dict.fromkeys(writer.files())
        for name in whole:
            path = self._folder / name
            ranges[name] = ranges.get(name) or range_digests(path, Report())
            files.append(stored_file(name, path.stat().st_size, ranges[name]))
        if self._summarized and self._sink.stale:
            files = self._compute_fingerprints(files, ranges, table)
        files.append(write_digests(self._folder, ranges))
        statistics, found = self._summarize(steps, EpisodeTable(table)) if self._summarized else ({}, ())
        return DatasetSummary(
            schema=self.schema,
            files=tuple(sorted(files, key=lambda entry: entry.path)),
            steps=steps,
            episodes=len(table),
            final_unknown=int((~table["final_known"]).sum()),
            statistics=statistics,
            spikes=found,
        )

    def _compute_fingerprints(
        self, files: list[StoredFile], ranges: dict[str, Any], table: NDArray[np.void]
    ) -> list[StoredFile]:
        """Overwrite the fingerprints of the episodes whose rows did not pass in order, and return the entries of all files."""
        unknown = int((~table["final_known"]).sum())
        manifest = Manifest(self._name, self._sink.rows, len(table), unknown, self.schema, tuple(files))
        stored = StoredDataset.unpublished(self._folder, manifest)
        changed = {FINGERPRINTS_FILE, SKETCHES_FILE}
        maps = {name: np.load(self._folder / name, mmap_mode="r+") for name in changed}
        for first, computed in computed_fingerprints(stored, np.array(sorted(self._sink.stale))):
            part = slice(first, first + len(computed))
            maps[FINGERPRINTS_FILE][part], maps[SKETCHES_FILE][part] = computed.records, computed.sketches
        for name, array in maps.items():
            array.flush()
            ranges[name] = range_digests(self._folder / name, Report())
        kept = [file for file in files if file.path not in changed]
        return kept + [stored_file(name, (self._folder / name).stat().st_size, ranges[name]) for name in changed]

    def _summarize(self, steps: int, table: EpisodeTable) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return the statistics of all fields, and the spikes."""
        statistics = {dotted_name(key): moments.to_json() for key, moments in self._sink.moments.items()}
        # From the file, so that the digests are the same however the conversion was divided or interrupted.
        rows = open_npy(self._folder / ROWS_FILE, self.schema.record, (steps,))
        for name, numbers in field_quantiles(self.schema, steps, partial(take_fields, rows)).items():
            statistics[name] |= numbers
        statistics |= episode_statistics(table)
        found = spikes(self.schema, statistics, table, lambda key, start, stop: rows[dotted_name(key)][start:stop])
        return statistics, tuple(found)

    def discard(self) -> None:
        """Close all files, complete or not, and stop the thread."""
        self._sink.discard()


def _dtype_and_shape(array: tuple[np.dtype[Any], tuple[int, ...]] | None) -> str:
    return "nothing" if array is None else f"{array[0].name} {list(array[1])}"
