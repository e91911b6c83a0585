"""Fingerprints of the episodes of a version: while it is written, and again from its files."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from datasets_rl.fingerprints.canonical import RowDigests, digest_numbers, digest_texts
from datasets_rl.fingerprints.fingerprint import (
    FINGERPRINTS_FILE,
    SKETCHES_FILE,
    FieldRows,
    Fingerprinter,
    Fingerprints,
    fingerprint_dtype,
)
from datasets_rl.fingerprints.sketch import SKETCH, SKETCH_SIZE
from datasets_rl.format.episode_log import EPISODES_FILE
from datasets_rl.format.images.base import ArrayFile, CopiedRows, FieldWriter
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, Key
from datasets_rl.ted.table import EPISODE_DTYPE

if TYPE_CHECKING:
    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.format.schema import Field, Schema

_BLOCK_BYTES = 4 << 20
_MAX_BLOCK = 1 << 16
_COMPUTED = frozenset({NEXT_DONE, EPISODE})
Texts = Callable[[Key], Sequence[str]]
"""Function of the key of a text field that returns its vocabulary."""


def fingerprint_files(names: Sequence[str]) -> list[ArrayFile]:
    """Return the files with the fingerprints of the episodes, given the dotted keys of the stored fields."""
    return [
        ArrayFile(FINGERPRINTS_FILE, fingerprint_dtype(names), (), "episode"),
        ArrayFile(SKETCHES_FILE, SKETCH, (SKETCH_SIZE,), "episode"),
    ]


def fingerprinted(schema: Schema) -> list[Field]:
    """Return the fields that fingerprints cover: all fields but those that follow from others."""
    return [field for field in schema if field.key not in _COMPUTED]


class FingerprintWriter:
    """Fingerprints of episodes that are being written.

    Args:
        schema: The fields.
        writers: The writers of the fields.
        texts: Returns the texts of a text field so far. Texts are only ever added.
    """

    def __init__(self, schema: Schema, writers: Mapping[Key, FieldWriter], texts: Texts) -> None:
        self._fields = fingerprinted(schema)
        self._writers = writers
        self._texts = _TextDigests(texts)
        self._open = Fingerprinter(_sizes(self._fields))
        self._origins = {field.name: _Origins() for field in self._fields if field.compressed}

    def add(
        self,
        columns: Mapping[Key, Any],
        final_states: Mapping[Key, Any],
        runs: Sequence[tuple[int, int]],
        ends: Sequence[int],
    ) -> tuple[NDArray[np.void], NDArray[np.void], NDArray[np.bool_]]:
        """Add rows, and return the records and the sketches of the episodes that end, [m] and [m, K].

        The last result is which of the fingerprints have to be computed from the files, [m]: those of parts of episodes whose compressed
        images are copied. If whole episodes are copied, so are the digests of the images.

        Args:
            columns: The buffer of each field.
            final_states: The buffer of each shared field for the m final states.
            runs: Start and length of each run of rows of an episode.
            ends: The last row of each episode that ends.
        """
        starts = np.array([start for start, _ in runs], np.int64)
        stops = starts + np.array([length for _, length in runs], np.int64)
        count = int(stops[-1])
        rows = {field.name: self._rows(field, columns[field.key], count) for field in self._fields}
        finals = {
            field.name: self._rows(field, final_states[field.key], len(ends)).digests
            for field in self._fields
            if field.shared
        }
        ended = np.isin(stops - 1, ends)
        records, sketches = self._open.add(rows, finals, starts, stops, ended)
        missing = np.zeros(len(records), np.bool_)
        for field in self._fields:
            if field.compressed:
                writer = self._writers[field.key]
                final = writer.copied(final_states[field.key]) if field.shared else ()
                origins = self._origins[field.name].add(writer.copied(columns[field.key]), final, starts, stops, ended)
                for number, origin in enumerate(origins):
                    missing[number] |= not origin.complete(records[field.name][number : number + 1])
        return records, sketches, missing

    def forget(self) -> None:
        """Forget the rows of the open episode, whose fingerprint is computed from the files."""
        self._open.forget()
        for origins in self._origins.values():
            origins.forget()

    def _rows(self, field: Field, buffer: Any, count: int) -> FieldRows:
        if field.text:
            return self._texts.rows(field.key, buffer[:count])
        digests = self._writers[field.key].digests(buffer, count)
        return FieldRows(digests, buffer[:count] if _has_numbers(field) else None)


class _Origin:
    """The episode of a dataset that has all images of an episode here, as far as they are copied as bytes."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._first = self._count = 0
        self._copied: bool | None = None
        self._final: tuple[Path, int] | None = None

    def extend(self, file: Path | None, numbers: NDArray[np.int64], count: int) -> None:
        """Add rows: copied ones, or rows of pixels."""
        copied = file is not None
        if self._copied is None:
            self._file, self._copied = file, copied
            self._first = int(numbers[0]) if copied else 0
        expected = np.arange(count) + (self._first + self._count)
        if copied != self._copied or file != self._file or (copied and not np.array_equal(numbers, expected)):
            self._file, self._first, self._copied = None, -1, True  # no episode
        self._count += count

    def end(self, file: Path, episode: int) -> None:
        """Set the copied final state."""
        self._final = file, episode

    def complete(self, record: NDArray[np.void]) -> bool:
        """Copy the digests of copied images to the record of a field, [1]. Return whether all are known."""
        if not self._copied and self._final is None:
            return True
        if not self._copied or self._file is None or self._first < 0:
            return False
        folder, name = self._file.parent, self._file.name.removesuffix(".npy")
        table, records = _tables(folder)
        episode = int(np.searchsorted(table["start"], self._first))
        if episode >= len(table) or table[episode]["start"] != self._first or table[episode]["length"] != self._count:
            return False
        if name not in (records.dtype.names or ()):
            return False
        source = records[name][episode]
        for part in ("digest", "bits"):
            record[part] = source[part]
        if self._final is not None:
            if self._final != (folder / f"final.{name}.npy", episode):
                return False
            record["final"] = source["final"]
        return True


@lru_cache(maxsize=16)
def _tables(folder: Path) -> tuple[NDArray[np.void], NDArray[np.void]]:
    """Return the episode table and the fingerprints of a version, which never changes. Both are empty if they cannot be read."""
    try:
        return np.load(folder / EPISODES_FILE), np.load(folder / FINGERPRINTS_FILE)
    except (OSError, ValueError):
        return np.zeros(0, EPISODE_DTYPE), np.zeros(0, fingerprint_dtype(()))


class _Origins:
    """The origins of the images of a field, in the order of the rows."""

    def __init__(self) -> None:
        self._open = _Origin()

    def forget(self) -> None:
        self._open = _Origin()

    def add(
        self,
        copied: Sequence[CopiedRows],
        final: Sequence[CopiedRows],
        starts: NDArray[np.int64],
        stops: NDArray[np.int64],
        ended: NDArray[np.bool_],
    ) -> list[_Origin]:
        """Add rows, and return the origins of the episodes that end, [m]. The arguments are those of `Fingerprinter.add`."""
        complete = []
        for start, stop, ends in zip(starts.tolist(), stops.tolist(), ended.tolist(), strict=True):
            at = start
            for rows in copied:
                first, last = max(rows.start, at), min(rows.start + len(rows.numbers), stop)
                if first < last:
                    if at < first:
                        self._open.extend(None, rows.numbers[:0], first - at)
                    self._open.extend(rows.file, rows.numbers[first - rows.start : last - rows.start], last - first)
                    at = last
            if at < stop:
                self._open.extend(None, np.empty(0, np.int64), stop - at)
            if ends:
                complete.append(self._open)
                self._open = _Origin()
        for rows in final:
            for number, episode in enumerate(rows.numbers.tolist()):
                complete[rows.start + number].end(rows.file, episode)
        return complete


class _TextDigests:
    """Digests of the texts of vocabularies that grow."""

    def __init__(self, texts: Texts) -> None:
        self._vocabulary = texts
        self._digests: dict[Key, RowDigests] = {}

    def rows(self, key: Key, codes: NDArray[Any]) -> FieldRows:
        known = self._digests.get(key, np.empty(0, np.uint64))
        if codes.size and codes.max() >= len(known):
            known = np.concatenate([known, digest_texts(self._vocabulary(key)[len(known) :])])
            self._digests[key] = known
        return FieldRows(known[codes])


def computed_fingerprints(
    stored: StoredDataset, episodes: NDArray[np.int64] | None = None, *, windows: int = SKETCH_SIZE
) -> Iterator[tuple[int, Fingerprints]]:
    """Compute the fingerprints of episodes from the files of a version.

    Args:
        stored: The version.
        episodes: The episodes, ascending, [m]. By default all.
        windows: The greatest number of windows of a sketch.

    Yields:
        The number of an episode, and the fingerprints of consecutive episodes from this one on.
    """
    table = stored.episodes
    numbers = np.arange(len(table)) if episodes is None else episodes
    fields = fingerprinted(stored.schema)
    texts = _TextDigests(stored.texts)
    step_bytes = sum(8 * math.prod(field.shape) if not field.wide else field.step_bytes for field in fields)
    block = max(1, min(_MAX_BLOCK, _BLOCK_BYTES // step_bytes))
    open_episodes = Fingerprinter(_sizes(fields), windows)
    for first, last in _runs(table.starts, table.stops, numbers, block):
        for start in range(int(table.starts[first]), int(table.stops[last]), block):
            stop = min(start + block, int(table.stops[last]))
            begin, end = table.episode_of(np.array([start, stop - 1])).tolist()
            inside = np.arange(begin, end + 1)
            starts, stops = table.starts[inside].clip(start) - start, table.stops[inside].clip(max=stop) - start
            ended = table.stops[inside] <= stop
            rows = {field.name: _stored_rows(stored, field, start, stop, texts) for field in fields}
            finals = {
                field.name: _final_digests(stored, field, inside[ended], texts) for field in fields if field.shared
            }
            records, sketches = open_episodes.add(rows, finals, starts, stops, ended)
            if ended.any():
                yield (
                    int(inside[ended][0]),
                    Fingerprints(records, sketches, table.lengths[inside[ended]], table["final_known"][inside[ended]]),
                )


def fingerprint_problems(stored: StoredDataset) -> Iterator[str]:
    """Compute the fingerprints of a version again, and yield a problem for each field whose stored fingerprints differ."""
    stated = stored.fingerprints
    wrong: dict[str, list[int]] = {}
    for first, computed in computed_fingerprints(stored):
        part = slice(first, first + len(computed))
        differ = {name: computed.records[name] != stated.records[name][part] for name in computed.names}
        differ["the sketch"] = (computed.sketches != stated.sketches[part]).any(axis=1)
        for name, episodes in differ.items():
            wrong.setdefault(name, []).extend((first + np.flatnonzero(episodes)).tolist())
    for name, episodes_of in wrong.items():
        if episodes_of:
            yield (
                f"the fingerprint of {name} in episode {episodes_of[0]:,} is not that of its values "
                f"({len(episodes_of):,} such episodes)"
            )


def _has_numbers(field: Field) -> bool:
    return not (field.wide or field.text)


def _sizes(fields: Sequence[Field]) -> dict[str, int]:
    sizes = {}
    for field in fields:
        has_shapes = _has_numbers(field) and field.dtype.kind == "f"
        # Images that are copied as bytes have no digests of rows.
        sizes[field.name] = math.prod(field.shape) if has_shapes else -1 if field.wide else 0
    return sizes


def _runs(
    starts: NDArray[np.int64], stops: NDArray[np.int64], numbers: NDArray[np.int64], rows: int
) -> Iterator[tuple[int, int]]:
    """Yield the first and the last of consecutive episodes that are read together, of about this number of rows."""
    at = 0
    while at < len(numbers):
        last = at
        while (
            last + 1 < len(numbers)
            and numbers[last + 1] == numbers[last] + 1
            and stops[numbers[last + 1]] - starts[numbers[at]] <= rows
        ):
            last += 1
        yield int(numbers[at]), int(numbers[last])
        at = last + 1


def _stored_rows(stored: StoredDataset, field: Field, start: int, stop: int, texts: _TextDigests) -> FieldRows:
    items = stored.items(field.key)
    if not isinstance(items, np.ndarray):
        return FieldRows(items.digests(start, stop))
    if field.text:
        return texts.rows(field.key, items[start:stop])
    values = items[start:stop]
    return FieldRows(digest_numbers(values), values if _has_numbers(field) else None)


def _final_digests(stored: StoredDataset, field: Field, episodes: NDArray[np.int64], texts: _TextDigests) -> RowDigests:
    if not len(episodes):
        return np.empty(0, np.uint64)
    start, stop = int(episodes[0]), int(episodes[-1]) + 1
    items = stored.final_states(field.key)
    if not isinstance(items, np.ndarray):
        return items.digests(start, stop)
    if field.text:
        return texts.rows(field.key, items[start:stop]).digests
    return digest_numbers(items[start:stop])
