"""Recordings: finished episodes on the disk that are not yet a part of the dataset.

    <dataset>/recorded/<id>@<process>/     the recording of a process
        rows.npy, ...                         the rows, as written by a `DatasetWriter`
        recording.json                        the id, the dataset, the schema, and the description of a new dataset
        journal.jsonl                         a line for each commit of the writer, with the checksums of all rows so far

An episode is safe once the line of the episode is in the journal: the episode survives the death of the process. The
files of a dead process are untrusted: a power cut leaves zeros, a disk reads badly, anyone may have written the files.
The result of reading a recording depends on its state:

the recording cannot be read     an error: no episode is certain
no episode is finished           None
a part is damaged                the episodes before the first damaged line of the journal, and the damage of this line
the recording is whole           all episodes
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.build.journal import Journal
from datasets_rl.build.partial import writer_columns
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.episode_log import EpisodeLog
from datasets_rl.format.images.compressed import dictionary_file
from datasets_rl.format.manifest import array_file
from datasets_rl.format.npy import unfinished_blocks
from datasets_rl.format.schema import FINAL_FILE, ROWS_FILE, Column, Schema
from datasets_rl.format.statistics import Moments, has_statistics
from datasets_rl.format.writer import Commit, DatasetWriter, schema_of_columns
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.specs import TensorSpec
from datasets_rl.store.layout import RECORDING_FILE
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, Key, dotted_name
from datasets_rl.ted.table import COMPUTED

DESCRIPTION_FILE = RECORDING_FILE
JOURNAL_FILE = "journal.jsonl"
_JOURNAL_KEY = "recording"
_SYNC_SECONDS = 1.0
"""Seconds between two syncs: if the machine fails, at most the episodes of this time are lost."""
_BLOCK_ROWS = 1 << 16
_READ_BYTES = 1 << 20
_MAX_COUNT = 1 << 50
_MAX_NAME = 200
_KEPT = "move the folder away, or delete the folder if you do not need the recorded episodes"


class Recording:
    """The recording of a process. Append finished episodes to `writer`, then call `commit` to make the episodes safe.

    Args:
        folder: An empty folder ``<id>@<process>``, with the id of the recording.
        columns: The columns of a step.
        name: The id of the dataset.
        description: Additional entries of the manifest of a new dataset: ``specs``, ``metadata`` and optionally
            ``score``, as JSON values.
        dictionaries: The dictionary of each field of compressed images.
    """

    def __init__(
        self,
        folder: Path,
        columns: Sequence[Column],
        name: str,
        description: Mapping[str, Any],
        dictionaries: Mapping[Key, FrameDictionary] | None = None,
    ) -> None:
        self.folder = folder
        self.writer = DatasetWriter(folder, columns, name=name, dictionaries=dictionaries)
        self._checksums = _Checksums(folder)
        self._journal = Journal(folder / JOURNAL_FILE, _JOURNAL_KEY)
        self._synced = time.monotonic()
        schema = self.writer.schema.to_json()
        disk.write_json(
            folder / DESCRIPTION_FILE,
            {"id": disk.unclaimed_name(folder), "dataset": name, "schema": schema, "description": dict(description)},
        )

    def commit(self) -> None:
        """Commit all episodes of the writer. Committed episodes survive the death of this process."""
        sync = time.monotonic() - self._synced >= _SYNC_SECONDS
        commit = self.writer.commit(sync=sync)
        entry = {"commit": commit, "crc32": self._checksums.extend(commit["files"])}
        self._journal.append({**entry, "line_crc32": _line_checksum(entry)}, sync=sync)
        if sync:
            self._synced = time.monotonic()


@dataclass(frozen=True, slots=True)
class SavedRecording:
    """The finished episodes of a recording that no process writes."""

    folder: Path
    id: str
    """The id of the recording, from the name of the folder. A copy of the folder is not mistaken for the recording."""
    dataset_id: str
    schema: Schema
    description: Mapping[str, Any]
    commit: Commit
    """All episodes as the result of a single `DatasetWriter.commit`."""
    damage: str
    """The damage of the first damaged line of the journal, or empty if the recording is whole."""

    @property
    def entry(self) -> str:
        """Entry in the manifest of a dataset with these episodes: the id, and the number of episodes."""
        return f"{self.id}:{self.episodes}"

    @property
    def steps(self) -> int:
        """Number of steps."""
        return int(self.commit["steps"])

    @property
    def episodes(self) -> int:
        """Number of episodes."""
        return len(self.commit["lengths"])

    @classmethod
    def read(cls, folder: Path) -> SavedRecording | None:
        """Return the recording in a folder, or None if no episode is finished.

        Raises:
            IntegrityError: If a file is damaged, so that no episode is certainly whole.
            OSError: If a file cannot be read.
        """
        disk.check_kind(folder, folder=True)
        document, lines = _read_description(folder), _read_lines(folder)
        if document is None and not lines:
            return None
        if document is None or lines is None:
            raise _damaged(folder, f"{DESCRIPTION_FILE if document is None else JOURNAL_FILE} is missing")
        schema = document["schema"]
        commit, damage = _read_commits(folder, schema, lines)
        if not commit["lengths"]:
            if damage:
                raise _damaged(folder, damage)
            return None
        _check_rows(folder, schema, commit)
        return cls(folder, document["id"], document["dataset"], schema, document["description"], commit, damage)


def _read_description(folder: Path) -> dict[str, Any] | None:
    """Return the document in recording.json, with the schema, or None if there is no such file."""
    data = _read_whole(folder / DESCRIPTION_FILE)
    try:
        return None if data is None else _parse_description(data, disk.unclaimed_name(folder))
    except (AttributeError, InvalidArgumentError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(folder, f"{DESCRIPTION_FILE} is damaged: {error}") from error


def _parse_description(data: bytes, name: str) -> dict[str, Any]:
    document = json.loads(data, parse_constant=_refuse_constant)
    schema = Schema.from_json(document["schema"])
    if schema != schema_of_columns(writer_columns(schema)):
        raise ValueError("the schema is not the schema of a recording")
    if not isinstance(document["dataset"], str) or document["id"] != name:
        raise ValueError(
            f"the id is {str(document['id'])[:_MAX_NAME]}, as in a copy of the folder of another recording"
        )
    description = document["description"]
    specs, metadata, score = description["specs"], description["metadata"], description.get("score", {})
    if not isinstance(score, dict) or any(map(array_file, metadata.values())):
        raise ValueError("the description is not the description of a recording")
    for spec in specs.values():
        TensorSpec.from_json(spec)
    return {**document, "schema": schema}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _read_lines(folder: Path) -> list[bytes] | None:
    """Return the lines of the journal after the header line, or None if there is no journal.

    The line that a process was writing when the process was killed has no end, and is left out.
    """
    data = _read_whole(folder / JOURNAL_FILE)
    if data is None:
        return None
    first, _, content = data.partition(b"\n")
    if first != json.dumps({"key": _JOURNAL_KEY}).encode():
        raise _damaged(folder, f"{JOURNAL_FILE} does not begin like the journal of a recording")
    *lines, rest = content.split(b"\n")
    # No process writes a NUL: the file system has lost the end of the line.
    return [*lines, rest] if b"\0" in rest else lines


def _read_commits(folder: Path, schema: Schema, lines: Sequence[bytes]) -> tuple[Commit, str]:
    """Return the commits before the first damaged line, merged into a single commit, and the damage of this line.

    Raises:
        OSError: If a file cannot be read.
    """
    log, checksums = EpisodeLog(field.key for field in schema if field.text), _Checksums(folder)
    last: Commit = {"steps": 0, "files": {}}
    damage = ""
    for number, line in enumerate(lines, 2):
        try:
            last = _parse_commit(line, schema, last, len(log), checksums)
        except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            damage = f"line {number} of {JOURNAL_FILE} is damaged: {error}"
            break
        except _ShorterError as error:
            damage = f"{error}, fewer than line {number} of {JOURNAL_FILE} states"
            break
        log.add_commit(last)
        for key in log.vocabulary:
            log.codes(key, last["words"][dotted_name(key)])
    return {**last, **log.commit()}, damage


def _parse_commit(line: bytes, schema: Schema, last: Commit, episodes: int, checksums: _Checksums) -> Commit:
    """Return the commit of a line, which must continue `last`, a commit of `episodes` episodes, and match the files.

    Raises:
        ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError: If the line is damaged, or does
            not match the files.
        _ShorterError: If a file has fewer bytes than the line states.
    """
    entry = json.loads(line)
    if _line_checksum(entry) != entry["line_crc32"]:
        raise ValueError("the checksum of the line does not match")
    commit: Commit = entry["commit"]
    lengths, rows, files = _integers(commit["lengths"], 1), commit["rows"], commit["files"]
    steps = last["steps"] + sum(lengths)
    _require_equal(commit, {"steps": steps, "open_steps": 0, "open_return": 0, "stale": []})
    _check_values(commit, schema)
    stored = schema.array_files
    dictionaries = {dictionary_file(field.key) for field in schema if field.image_form.has_dictionary}
    if rows.keys() != stored.keys() or files.keys() != stored.keys() | dictionaries:
        raise ValueError(f"the files are {sorted(rows.keys() | files.keys())}, expected {sorted(stored)}")
    _integers([*rows.values(), *files.values()], 0)
    counts = {name: file.count(steps, episodes + len(lengths)) for name, file in stored.items() if file.counted}
    _require_equal(rows, counts)  # the bytes of images vary
    if any(size < last["files"].get(name, 0) for name, size in files.items()):
        raise ValueError("the files are smaller than in the previous line")
    if checksums.extend(files) != entry["crc32"]:
        raise ValueError("the checksum of the stored rows does not match")
    return commit


def _check_values(commit: Commit, schema: Schema) -> None:
    """Check the values of the episodes, the texts, and the state of the statistics in a commit."""
    for name, (dtype, _) in commit["facts"].items():
        if not 0 < len(name) <= _MAX_NAME or name in COMPUTED or np.dtype(dtype).kind not in "biufU":
            raise ValueError(f"facts has {name[:_MAX_NAME]!r} of {dtype}")
    columns = [("known", ("?", commit["known"])), ("returns", ("<f8", commit["returns"])), *commit["facts"].items()]
    for name, (dtype, values) in columns:
        if not isinstance(values, list) or np.array(values, dtype).shape != (len(commit["lengths"]),):
            raise ValueError(f"{name} is not a list with a value for each episode")
    for field in schema:
        if has_statistics(field):
            Moments(field.shape).restore(commit["moments"][field.name])
        if field.text and not all(isinstance(word, str) for word in commit["words"][field.name]):
            raise ValueError(f"words.{field.name} is not a list of texts")


def _integers(values: Any, minimum: int) -> list[int]:
    if not isinstance(values, list) or not all(
        type(value) is int and minimum <= value < _MAX_COUNT for value in values
    ):
        raise ValueError(f"a value is {str(values)[:60]}, expected a list of integers >= {minimum}")
    return values


def _require_equal(stated: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    for name, value in expected.items():
        if stated[name] != value:
            raise ValueError(f"{name} is {str(stated[name])[:60]}, expected {value}")


def _check_rows(folder: Path, schema: Schema, commit: Commit) -> None:
    """Check that the rows have the ends and the numbers of the episodes, and codes of texts that exist.

    Raises:
        IntegrityError: If a row is wrong. The checksum is right, so that a program has written the wrong row.
    """
    ends = np.cumsum(commit["lengths"])
    start = 0
    for block in unfinished_blocks(folder / ROWS_FILE, schema.record, (), int(ends[-1]), _BLOCK_ROWS):
        rows = np.arange(start, start + len(block))
        numbers = np.searchsorted(ends, rows, side="right")
        last = ends[numbers] - 1 == rows
        done, terminated, truncated = (
            block[dotted_name(key)][:, 0] for key in (NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED)
        )
        wrong = (block[dotted_name(EPISODE)] != numbers) | (done != last) | ((terminated | truncated) != last)
        if wrong.any():
            raise _damaged(folder, f"row {rows[wrong][0]} is not of the episode that {JOURNAL_FILE} states")
        _check_codes(folder, block, commit)
        start += len(block)
    if any(field.shared for field in schema.narrow):
        for block in unfinished_blocks(folder / FINAL_FILE, schema.final_record, (), len(ends), _BLOCK_ROWS):
            _check_codes(folder, block, commit)


def _check_codes(folder: Path, block: Any, commit: Commit) -> None:
    for name in commit["words"].keys() & set(block.dtype.names):
        if not ((block[name] >= 0) & (block[name] <= len(commit["words"][name]))).all():
            raise _damaged(folder, f"{name} has the code of a text that does not exist")


class _Checksums:
    """CRC-32 of the first bytes of files that grow."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def extend(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the checksums of the first bytes of all files, by name. Only bytes since the last call are read.

        Args:
            sizes: The number of bytes of each file, not less than in the last call.

        Raises:
            _ShorterError: If a file is shorter than in `sizes`.
            OSError: If a file cannot be read.
        """
        for name, size in sizes.items():
            start, value = self._sizes.get(name, 0), self._values.get(name, 0)
            if size > start:
                try:
                    for chunk in _read_range(self._folder / name, start, size):
                        value = zlib.crc32(chunk, value)
                except FileNotFoundError:
                    raise _ShorterError(f"{name} has no bytes") from None
            self._sizes[name], self._values[name] = size, value
        return {name: self._values[name] for name in sizes}


def _line_checksum(entry: Mapping[str, Any]) -> int:
    """Return the CRC-32 of an entry of the journal, without the field of the checksum."""
    content = {name: value for name, value in entry.items() if name != "line_crc32"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


class _ShorterError(Exception):
    """Raised when a file has fewer bytes than were written."""


def _read_whole(path: Path) -> bytes | None:
    with suppress(FileNotFoundError):
        return b"".join(_read_range(path, 0))
    return None


def _read_range(path: Path, start: int, stop: int | None = None) -> Iterator[bytes]:
    """Yield the bytes of a file from `start` to `stop`, by default to the end of the file.

    Raises:
        _ShorterError: If the file has fewer bytes than `stop`.
        IntegrityError: If the path is a link or a pipe, or the file cannot be read up to `stop`.
        OSError: If the file cannot be opened or read.
    """
    disk.check_kind(path, folder=False)
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        stop = size if stop is None else stop
        if size < stop:
            raise _ShorterError(f"{path.name} has {size:,} bytes")
        stream.seek(start)
        while start < stop:
            chunk = stream.read(min(_READ_BYTES, stop - start))
            if not chunk:  # the file has these bytes, so this is a fault of the disk
                raise _damaged(path.parent, f"{path.name} can be read up to byte {start:,} of {stop:,} only")
            start += len(chunk)
            yield chunk


def _damaged(folder: Path, problem: str) -> IntegrityError:
    return IntegrityError(str(folder), [problem], hint=_KEPT)
