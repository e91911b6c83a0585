"""Recordings: finished episodes on the disk that are not yet a part of their dataset.

    <root>/.recorded/<name>/<run>/        rows.npy, ..., recording.json, journal.jsonl
    <root>/.recorded/<name>/<run>.lock    the owner file: the process that records

An episode is safe from the death of its process once its line is in the journal. A recording becomes a part of the
dataset when a new version, with its episodes at the end, replaces the dataset:

    episodes  ->  rows  ->  line of the journal  ->  new version = dataset + recordings  ->  recordings are deleted
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import AppliedDecision, Manifest, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema
from datasets_rl.format.writer import Commit, DatasetSummary, DatasetWriter
from datasets_rl.pipeline.conversion import specs_of_schema, write_metadata
from datasets_rl.pipeline.journal import Journal
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import EPISODE, NEXT_DONE, dotted_name
from datasets_rl.ted.stats import Moments, has_statistics

_FILE = "recording.json"
_JOURNAL = "journal.jsonl"
_KEY = "recording"
_SYNC_SECONDS = 1.0
"""Seconds between two waits for the disk: at most the episodes of this time are lost if the machine fails."""
_BLOCK_STEPS = 1 << 16
_RULE = "appended"
_OWN_TABLE_FIELDS = {"start", "length", "return", "final_known", "source"}


def data_columns(schema: Schema) -> list[Column]:
    """Return the columns of a schema that a `DatasetWriter` does not add itself."""
    return [
        Column(field.key, field.dtype, field.shape, field.shared, field.memory_dtype, field.text, field.encoded)
        for field in schema
        if field.key not in {EPISODE, NEXT_DONE}
    ]


def column_differences(stored: Schema, columns: Sequence[Column]) -> list[str]:
    """Return the differences between the columns of new episodes and those of a dataset, a sentence each."""

    def described(column: Column) -> str:
        kinds = [name for name in ("shared", "text", "encoded") if getattr(column, name)]
        return " ".join([column.dtype.name, str(list(column.shape)), *kinds])

    new = {dotted_name(column.key): described(column) for column in columns}
    old = {dotted_name(column.key): described(column) for column in data_columns(stored)}
    return [
        f"{name} is {new.get(name, 'missing')}; the dataset has {old.get(name, 'no such field')}"
        for name in sorted(new.keys() | old.keys())
        if new.get(name) != old.get(name)
    ]


class Recording:
    """The recording of one process, which appends finished episodes to it.

    Args:
        folder: A folder that does not exist yet.
        columns: The columns of a step.
        name: The id of the dataset.
        description: What the manifest of a new dataset states in addition: ``specs``, ``metadata`` and
            optionally ``score``, as JSON values.
    """

    def __init__(self, folder: Path, columns: Sequence[Column], name: str, description: Mapping[str, Any]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._writer = DatasetWriter(folder, columns, name=name)
        self._journal = Journal(folder / _JOURNAL, _KEY)
        self._synced = time.monotonic()
        schema = self._writer.schema.to_json()
        disk.write_json(
            folder / _FILE,
            {"id": name, "boot": disk.machine_identity()[0], "schema": schema, "description": dict(description)},
        )

    def append(self, episode: Episode) -> None:
        """Append an episode, without committing it."""
        self._writer.append(episode)

    def extend(self, episodes: EpisodeBatch) -> None:
        """Append whole episodes, without committing them."""
        self._writer.extend(episodes)

    def commit(self) -> None:
        """Commit all appended episodes: they survive the death of this process once this returns."""
        sync = time.monotonic() - self._synced >= _SYNC_SECONDS
        commit = self._writer.commit(sync=sync)
        self._journal.append({"commit": commit, "synced": sync}, sync=sync)
        if sync:
            self._synced = time.monotonic()

    def close(self) -> None:
        """Close all files; the recording stays on the disk."""
        self._writer.discard()


@dataclass(frozen=True, slots=True)
class SavedRecording:
    """A recording on the disk that no process is writing."""

    folder: Path
    dataset_id: str
    schema: Schema
    description: Mapping[str, Any]
    commit: Commit
    """All episodes as the result of one `DatasetWriter.commit`."""

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

        The operating system may have lost the episodes of the last second before a reboot. After one, only those count
        for which the process has waited for the disk.
        """
        try:
            document = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            schema = Schema.from_json(document["schema"])
            lines = (folder / _JOURNAL).read_bytes().split(b"\n")[1:-1]
        except (OSError, ValueError, KeyError, TypeError, InvalidArgumentError):
            return None
        entries = [json.loads(line) for line in lines]
        boot = disk.machine_identity()[0]
        if not boot or document["boot"] != boot:
            while entries and not entries[-1]["synced"]:
                entries.pop()
        if not entries:
            return None
        commits = [entry["commit"] for entry in entries]
        return cls(folder, document["id"], schema, document["description"], _joined_commit(commits))


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


def write_joined(build: Path, current: Path | None, recordings: Sequence[SavedRecording]) -> Manifest:
    """Write a dataset of the episodes of a stored one, followed by those of recordings; the manifest is written last.

    Args:
        build: An empty folder for the new version.
        current: The folder of the dataset; None for a new one.
        recordings: At least one recording of the same columns.

    Raises:
        InvalidArgumentError: If the columns differ.
        DiskFullError: If the new version does not fit on the disk.
    """
    first = recordings[0]
    stored = None if current is None else StoredDataset(current)
    schema = first.schema if stored is None else stored.schema
    for recording in recordings:
        if differences := column_differences(schema, data_columns(recording.schema)):
            raise InvalidArgumentError(
                f"the episodes in {recording.folder} do not fit {first.dataset_id}: {'; '.join(differences)}",
                hint="record them as another dataset, or move the folder away",
            )
    size = sum(map(disk.tree_bytes, [recording.folder for recording in recordings]))
    disk.require_free(build, size + (0 if stored is None else stored.manifest.bytes), "the new version of the dataset")
    steps = sum(recording.steps for recording in recordings) + (0 if stored is None else len(stored))
    writer = DatasetWriter(build, data_columns(schema), name=first.dataset_id, steps=steps)
    try:
        if stored is not None:
            writer.append_partial(stored.folder, _commit_of_dataset(stored))
        episodes = 0 if stored is None else len(stored.episodes)
        for recording in recordings:
            numbers = list(range(episodes, episodes + recording.episodes))
            facts = {**recording.commit["facts"], "source": ("<i8", numbers)}
            writer.append_partial(recording.folder, {**recording.commit, "facts": facts})
            episodes += recording.episodes
        written = writer.finish()
    finally:
        writer.discard()
    before = (
        Manifest(first.dataset_id, 0, 0, 0, schema, (), score=first.description.get("score", {}))
        if stored is None
        else replace(stored.manifest, raw=(), selection={}, revision="")
    )
    arrays = {
        name: np.array(map_npy(stored.folder / value["file"]))
        if stored is not None and isinstance(value, dict)
        else value
        for name, value in before.metadata.items()
    }
    metadata, files = write_metadata(build, {**first.description["metadata"], **arrays})
    appended = sum(recording.episodes for recording in recordings)
    manifest = replace(
        before,
        steps=written.steps,
        episodes=written.episodes,
        final_unknown=written.final_unknown,
        schema=written.schema,
        files=(*written.files, *files),
        converter=converter_version(),
        decisions=_with_appended(before.decisions, appended),
        statistics=written.statistics,
        specs=_specs(build, written, {**first.description["specs"], **before.specs}),
        metadata=metadata,
    )
    manifest.write(build)
    return manifest


def _specs(build: Path, written: DatasetSummary, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs of all fields. One whose bounds the values exceed is replaced by one of dtype and shape."""
    kept = dict(specs)
    for field in written.schema:
        spec, statistics = specs.get(field.name, {}), written.statistics.get(field.name)
        if spec.get("kind") != "bounded" or statistics is None:
            continue
        extremes = [np.array(statistics[name], np.float64) for name in ("min", "max")]
        if field.shared:
            final_states = map_npy(build / field.final_file)
            extremes.append(final_states if field.wide else final_states[field.name])
        low, high = np.array(spec["low"], np.float64), np.array(spec["high"], np.float64)
        if not all(((low <= values) & (values <= high)).all() for values in extremes):
            del kept[field.name]
    return specs_of_schema(written.schema, kept)


def _with_appended(decisions: Sequence[AppliedDecision], episodes: int) -> tuple[AppliedDecision, ...]:
    earlier = sum(decision.count for decision in decisions if decision.rule == _RULE)
    text = "Episodes that were recorded or appended, in this order, after those of any files."
    kept = [decision for decision in decisions if decision.rule != _RULE]
    return (*kept, AppliedDecision(_RULE, text, earlier + episodes))


def _commit_of_dataset(stored: StoredDataset) -> Commit:
    """Return a stored dataset as the result of the only commit of a `DatasetWriter`."""
    table = stored.episodes
    moments = {field.key: Moments(field.shape) for field in stored.schema if has_statistics(field)}
    for start in range(0, len(stored), _BLOCK_STEPS):
        for key, one in moments.items():
            one.update(stored.column(key, start, start + _BLOCK_STEPS))
    rows = {name: len(stored.map(name)) for name in {name for field in stored.schema for name in field.arrays}}
    facts = {name: table[name] for name in table.names if name not in _OWN_TABLE_FIELDS - {"source"}}
    return {
        "files": {},
        "steps": len(stored),
        "open_steps": 0,
        "open_return": 0.0,
        "lengths": table.lengths.tolist(),
        "known": table["final_known"].tolist(),
        "returns": table["return"].tolist(),
        "facts": {name: (values.dtype.str, values.tolist()) for name, values in facts.items()},
        "moments": {dotted_name(key): one.state() for key, one in moments.items()},
        "rows": rows,
        "words": {dotted_name(field.key): [*stored.texts(field.key)][1:] for field in stored.schema if field.text},
    }
