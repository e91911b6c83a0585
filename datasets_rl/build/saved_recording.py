"""Recordings on the disk that no process writes: which of their episodes are whole.

What is on the disk is untrusted: a power cut leaves zeros, a disk reads badly, anyone may have written the files. So a
recording is read in one of four ways:

it cannot be read              an error; nothing is known about its episodes
it has no finished episode     None
a part of it is damaged        its episodes before the first damaged line of the journal, and what is wrong with that line
it is whole                    all its episodes
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from datasets_rl import disk
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.manifest import array_file
from datasets_rl.format.npy import unfinished_blocks
from datasets_rl.format.schema import FINAL_FILE, ROWS_FILE, Column, Field, Schema
from datasets_rl.format.statistics import Moments, has_statistics
from datasets_rl.format.writer import Commit, schema_of_columns
from datasets_rl.specs import TensorSpec
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, NEXT_TERMINATED, NEXT_TRUNCATED, dotted_name
from datasets_rl.ted.table import EPISODE_DTYPE

DESCRIPTION_FILE = "recording.json"
JOURNAL_FILE = "journal.jsonl"
JOURNAL_KEY = "recording"
_BLOCK_ROWS = 1 << 16
_READ_BYTES = 1 << 20
_MAX_COUNT = 1 << 50
_MAX_NAME = 200
_KEPT = "move the folder away, or delete it if you do not need its episodes"


def data_columns(schema: Schema) -> list[Column]:
    """Return the columns of a schema that a `DatasetWriter` does not add itself."""
    return [
        Column(field.key, field.dtype, field.shape, field.shared, field.memory_dtype, field.text, field.encoded)
        for field in schema
        if field.key not in {EPISODE, NEXT_DONE}
    ]


@dataclass(frozen=True, slots=True)
class SavedRecording:
    """The finished episodes of a recording that no process writes."""

    folder: Path
    id: str
    """The id of the recording: the name of its folder, so that a copy of the folder is not taken for the recording."""
    dataset_id: str
    schema: Schema
    description: Mapping[str, Any]
    commit: Commit
    """All episodes as the result of one `DatasetWriter.commit`."""
    damage: str
    """What is wrong with the first damaged line of the journal; empty if the recording is whole."""

    @property
    def entry(self) -> str:
        """What the manifest of a dataset with these episodes lists: the id, and their number if others are damaged."""
        return f"{self.id}:{self.episodes}" if self.damage else self.id

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
        """Return the recording in a folder; None if it has no finished episode.

        Raises:
            IntegrityError: If a file is damaged, so that the recording has no episode that is certainly whole.
            OSError: If a file cannot be read.
        """
        disk.check_kind(folder, folder=True)
        document = _read_description(folder)
        lines = _read_lines(folder / JOURNAL_FILE)
        if document is None or lines is None:
            if (document, lines or []) != (None, []):
                missing = JOURNAL_FILE if lines is None else DESCRIPTION_FILE
                raise _damaged(folder, f"{missing} is missing")
            return None
        content = _Content(folder, document["schema"])
        commits, damage = content.read(lines)
        if not commits:
            if damage:
                raise _damaged(folder, damage)
            return None
        commit = _joined_commit(commits)
        _check_rows(folder, document["schema"], commit)
        return cls(
            folder, document["id"], document["dataset"], document["schema"], document["description"], commit, damage
        )


class Checksums:
    """CRC-32 of the first bytes of files that grow.

    Args:
        folder: The folder of the files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sizes: dict[str, int] = {}
        self._values: dict[str, int] = {}

    def extend(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the checksums of the first bytes of all files, by name, after reading those that are new.

        Args:
            sizes: The number of bytes of each file, not less than in the last call.

        Raises:
            IntegrityError: If a file is shorter.
            OSError: If a file cannot be read.
        """
        for name, size in sizes.items():
            start = self._sizes.get(name, 0)
            if size > start:
                self._values[name] = _extended_crc(self._folder / name, start, size, self._values.get(name, 0))
            self._sizes[name] = size
        return {name: self._values.get(name, 0) for name in sizes}


def line_checksum(entry: Mapping[str, Any]) -> int:
    """Return the CRC-32 of an entry of the journal, without its own checksum."""
    content = {name: value for name, value in entry.items() if name != "line_crc32"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


class _Content:
    """The content of a recording, as far as the lines of its journal were read."""

    def __init__(self, folder: Path, schema: Schema) -> None:
        self._schema = schema
        self._checksums = Checksums(folder)
        self._sizes: Mapping[str, int] = {}
        self._steps = self._episodes = 0

    def read(self, lines: Sequence[bytes]) -> tuple[list[Commit], str]:
        """Return the commits before the first damaged line, and what is wrong with that line.

        Raises:
            OSError: If a file cannot be read.
        """
        commits: list[Commit] = []
        for number, line in enumerate(lines, 2):
            try:
                commits.append(self._commit(line))
            except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
                return commits, f"line {number} of {JOURNAL_FILE} is damaged: {error}"
            except _ShorterError as error:
                return commits, f"{error}, fewer than line {number} of {JOURNAL_FILE} states"
        return commits, ""

    def _commit(self, line: bytes) -> Commit:
        """Return the commit of a line, if the files have its bytes, and it continues the lines before.

        Raises:
            ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError: If it does not.
        """
        entry = json.loads(line)
        if line_checksum(entry) != entry["line_crc32"]:
            raise ValueError("its checksum is another one")
        commit = entry["commit"]
        lengths = _integers(commit["lengths"], 1)
        steps, episodes = self._steps + sum(lengths), self._episodes + len(lengths)
        _require_equal(commit, {"steps": steps, "open_steps": 0, "open_return": 0})
        self._check_columns(commit, len(lengths))
        rows = _expected_rows(self._schema, steps, episodes)
        if commit["rows"].keys() != rows.keys() or commit["files"].keys() != rows.keys():
            raise ValueError(f"it has the files {sorted(commit['rows'])}; expected {sorted(rows)}")
        _integers([*commit["rows"].values()], 0)
        _require_equal(commit["rows"], {name: count for name, count in rows.items() if count is not None})
        _integers([*commit["files"].values()], 0)
        if any(size < self._sizes.get(name, 0) for name, size in commit["files"].items()):
            raise ValueError("its files are smaller than those of the line before")
        if self._checksums.extend(commit["files"]) != entry["crc32"]:
            raise ValueError("the rows of its episodes are not those that were written")
        self._steps, self._episodes, self._sizes = steps, episodes, commit["files"]
        return {name: commit[name] for name in _COMMIT}

    def _check_columns(self, commit: Commit, count: int) -> None:
        """Check the values of `count` episodes, and the state of the statistics."""
        known, returns = commit["known"], commit["returns"]
        if not all(type(value) is bool for value in known) or {len(known), len(returns)} != {count}:
            raise ValueError("known or returns is not a list of one value per episode")
        np.array(returns, np.float64)
        for name, (dtype, values) in commit["facts"].items():
            if not 0 < len(name) <= _MAX_NAME or name in _RESERVED or np.dtype(dtype).kind not in "biufU":
                raise ValueError(f"facts has {name[:_MAX_NAME]!r} of {dtype}")
            if np.array(values, dtype).shape != (count,):
                raise ValueError(f"facts.{name} is not a list of one value per episode")
        for field in filter(has_statistics, self._schema):
            Moments(field.shape).restore(commit["moments"][field.name])
        for field in _text_fields(self._schema):
            if not all(isinstance(word, str) for word in commit["words"][field.name]):
                raise ValueError(f"words.{field.name} is not a list of texts")


_COMMIT = (
    "files",
    "steps",
    "open_steps",
    "open_return",
    "lengths",
    "known",
    "returns",
    "facts",
    "moments",
    "rows",
    "words",
)
_RESERVED = {*(EPISODE_DTYPE.names or ())} - {"source"}


def _integers(values: Any, minimum: int) -> list[int]:
    if not isinstance(values, list) or not all(
        type(value) is int and minimum <= value < _MAX_COUNT for value in values
    ):
        raise ValueError(f"it has {str(values)[:60]}; expected a list of integers >= {minimum}")
    return values


def _require_equal(stated: Mapping[str, Any], expected: Mapping[str, int]) -> None:
    for name, value in expected.items():
        if stated[name] != value:
            raise ValueError(f"{name} is {str(stated[name])[:60]}; expected {value}")


def _text_fields(schema: Schema) -> Iterator[Field]:
    return (field for field in schema if field.text)


def _expected_rows(schema: Schema, steps: int, episodes: int) -> dict[str, int | None]:
    """Return the number of rows of each file of a `DatasetWriter`; None for the bytes of images, which vary."""
    return {name: None if file.ends else file.count(steps, episodes) for name, file in schema.array_files.items()}


def _check_rows(folder: Path, schema: Schema, commit: Commit) -> None:
    """Check that the rows have the ends and the numbers of the episodes, and codes of texts that exist.

    Raises:
        IntegrityError: If they do not; their checksum is right, so a program has written them like this.
    """
    ends = np.cumsum(commit["lengths"])
    sizes = {field.name: 1 + len(commit["words"][field.name]) for field in _text_fields(schema)}
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
        _check_codes(folder, block, sizes)
        start += len(block)
    if any(field.shared for field in schema.narrow):
        for block in unfinished_blocks(folder / FINAL_FILE, schema.final_record, (), len(ends), _BLOCK_ROWS):
            _check_codes(folder, block, sizes)


def _check_codes(folder: Path, block: Any, sizes: Mapping[str, int]) -> None:
    for name in sizes.keys() & set(block.dtype.names):
        if not ((block[name] >= 0) & (block[name] < sizes[name])).all():
            raise _damaged(folder, f"{name} has the code of a text that does not exist")


def _joined_commit(commits: Sequence[Commit]) -> Commit:
    """Return all commits of one writer as one: lists of changes are concatenated, states are those of the last one."""

    def concatenated(name: str) -> list[Any]:
        return [value for commit in commits for value in commit[name]]

    def column(name: str) -> list[Any]:
        zeros = [("", [0] * len(commit["lengths"])) for commit in commits]
        return [
            value for commit, zero in zip(commits, zeros, strict=True) for value in commit["facts"].get(name, zero)[1]
        ]

    dtypes = {name: dtype for commit in commits for name, (dtype, _) in commit["facts"].items()}
    facts = {name: (dtype, column(name)) for name, dtype in dtypes.items()}
    words = {name: [word for commit in commits for word in commit["words"][name]] for name in commits[-1]["words"]}
    lists = {name: concatenated(name) for name in ("lengths", "known", "returns")}
    return {**commits[-1], **lists, "facts": facts, "words": words}


def _read_description(folder: Path) -> dict[str, Any] | None:
    """Return what recording.json states, with the schema; None if there is no such file.

    Raises:
        IntegrityError: If it is damaged.
    """
    data = _read_whole(folder / DESCRIPTION_FILE)
    if data is None:
        return None
    try:
        return _parse_description(data, disk.unclaimed_name(folder))
    except (AttributeError, InvalidArgumentError, KeyError, RecursionError, TypeError, ValueError) as error:
        raise _damaged(folder, f"{DESCRIPTION_FILE} is damaged: {error}") from error


def _parse_description(data: bytes, name: str) -> dict[str, Any]:
    """Return a description of the recording in the folder with this name.

    Raises:
        AttributeError, InvalidArgumentError, KeyError, RecursionError, TypeError, ValueError: If it is not one.
    """
    document = json.loads(data, parse_constant=_not_json)
    schema = Schema.from_json(document["schema"])
    if schema != schema_of_columns(data_columns(schema)):
        raise ValueError("its schema is not one of a recording")
    if not isinstance(document["dataset"], str) or document["id"] != name:
        raise ValueError(f"it is of the recording {str(document['id'])[:_MAX_NAME]}, as in a copy of its folder")
    description = document["description"]
    specs, metadata, score = description["specs"], description["metadata"], description.get("score", {})
    if not isinstance(score, dict) or any(map(array_file, metadata.values())):
        raise ValueError("its description is not one of a recording")
    for spec in specs.values():
        TensorSpec.from_json(spec)
    return {**document, "schema": schema}


def _not_json(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON")


def _read_lines(path: Path) -> list[bytes] | None:
    """Return the lines of a journal after the first, which names it; None if there is no journal.

    The line that a process was writing when it was killed has no end, and is left out.

    Raises:
        IntegrityError: If it is not the journal of a recording.
    """
    data = _read_whole(path)
    if data is None:
        return None
    first, *lines, rest = data.split(b"\n") if b"\n" in data else (b"", data)
    if first != json.dumps({"key": JOURNAL_KEY}).encode():
        raise _damaged(path.parent, f"{JOURNAL_FILE} does not begin like the journal of a recording")
    # No process writes a NUL: the file system has lost the end of the line.
    return [*lines, rest] if b"\0" in rest else lines


class _ShorterError(Exception):
    """Raised when a file has fewer bytes than were written."""


def _read_whole(path: Path) -> bytes | None:
    try:
        with _open_plain(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            return b"".join(_read_range(stream, path, 0, size))
    except FileNotFoundError:
        return None


def _extended_crc(path: Path, start: int, stop: int, value: int) -> int:
    """Return the CRC-32 of the first `stop` bytes of a file, given that of its first `start` bytes."""
    try:
        stream = _open_plain(path)
    except FileNotFoundError:
        raise _ShorterError(f"{path.name} has no bytes") from None
    with stream:
        size = os.fstat(stream.fileno()).st_size
        if size < stop:
            raise _ShorterError(f"{path.name} has {size:,} bytes")
        for chunk in _read_range(stream, path, start, stop):
            value = zlib.crc32(chunk, value)
    return value


def _read_range(stream: IO[bytes], path: Path, start: int, stop: int) -> Iterator[bytes]:
    stream.seek(start)
    while start < stop:
        chunk = stream.read(min(_READ_BYTES, stop - start))
        if not chunk:  # the file has these bytes, so this is a fault of the disk
            raise _damaged(path.parent, f"{path.name} can be read up to byte {start:,} of {stop:,} only")
        start += len(chunk)
        yield chunk


def _open_plain(path: Path) -> IO[bytes]:
    """Open a file for reading, unless it is a link or a named pipe.

    Raises:
        IntegrityError: If it is not a regular file.
        OSError: If it cannot be opened.
    """
    disk.check_kind(path, folder=False)
    return path.open("rb")


def _damaged(folder: Path, problem: str) -> IntegrityError:
    return IntegrityError(str(folder), [problem], hint=_KEPT)
