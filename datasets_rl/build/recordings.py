"""Recordings: finished episodes on the disk that are not yet a part of their dataset.

    <dataset>/recorded/<id>@<host>-<pid>/     rows.npy, ..., recording.json, journal.jsonl; of the process in its name

An episode is safe from the death of its process once its line is in the journal. A recording becomes a part of the
dataset when a version with its episodes at the end is published:

    episodes  ->  rows  ->  line of the journal  ->  new version = dataset + recordings  ->  recordings are deleted

The manifest of the new version lists the ids of its recordings, so that a recording which a killed process did not
delete is not added again.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from datasets_rl import disk
from datasets_rl.build.conversion import specs_of_schema, write_metadata
from datasets_rl.build.journal import Journal
from datasets_rl.build.saved_recording import (
    DESCRIPTION_FILE,
    JOURNAL_FILE,
    JOURNAL_KEY,
    Checksums,
    SavedRecording,
    data_columns,
    line_checksum,
)
from datasets_rl.errors import IntegrityError, InvalidArgumentError
from datasets_rl.format.integrity import check_manifest
from datasets_rl.format.manifest import AppliedDecision, Manifest, array_file, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema, stored_column
from datasets_rl.format.statistics import Moments, has_statistics
from datasets_rl.format.writer import Commit, DatasetSummary, DatasetWriter
from datasets_rl.ted.episode import Episode
from datasets_rl.ted.episode_batch import EpisodeBatch
from datasets_rl.ted.keys import dotted_name

_SYNC_SECONDS = 1.0
"""Seconds between two waits for the disk: at most the episodes of this time are lost if the machine fails."""
_BLOCK_STEPS = 1 << 16
_RULE = "appended"
_OWN_TABLE_FIELDS = {"start", "length", "return", "final_known", "source"}


def column_differences(stored: Schema, columns: Sequence[Column]) -> list[str]:
    """Return the differences between the columns of new episodes and those of a dataset, a sentence each."""

    def described(column: Column) -> str:
        kinds = [name for name in ("shared", "text", "encoded") if getattr(column, name)]
        return " ".join([column.dtype.name, str(list(column.shape)), *kinds])

    new = {dotted_name(column.key): described(stored_column(column)) for column in columns}
    old = {dotted_name(column.key): described(column) for column in data_columns(stored)}
    return [
        f"{name} is {new.get(name, 'missing')}; the dataset has {old.get(name, 'no such field')}"
        for name in sorted(new.keys() | old.keys())
        if new.get(name) != old.get(name)
    ]


class Recording:
    """The recording of one process, which appends finished episodes to it.

    Args:
        folder: An empty folder. Its name, without that of the process that claimed it, is the id of the recording.
        columns: The columns of a step.
        name: The id of the dataset.
        description: What the manifest of a new dataset states in addition: ``specs``, ``metadata`` and
            optionally ``score``, as JSON values.
    """

    def __init__(self, folder: Path, columns: Sequence[Column], name: str, description: Mapping[str, Any]) -> None:
        self.folder = folder
        self._writer = DatasetWriter(folder, columns, name=name)
        self._checksums = Checksums(folder)
        self._journal = Journal(folder / JOURNAL_FILE, JOURNAL_KEY)
        self._synced = time.monotonic()
        schema = self._writer.schema.to_json()
        disk.write_json(
            folder / DESCRIPTION_FILE,
            {"id": disk.unclaimed_name(folder), "dataset": name, "schema": schema, "description": dict(description)},
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
        entry = {"commit": commit, "crc32": self._checksums.extend(commit["files"])}
        self._journal.append({**entry, "line_crc32": line_checksum(entry)}, sync=sync)
        if sync:
            self._synced = time.monotonic()

    def close(self) -> None:
        """Close all files; the recording stays on the disk."""
        self._writer.discard()


def write_joined(build: Path, stored: StoredDataset | None, recordings: Sequence[SavedRecording]) -> Manifest:
    """Write a dataset of the episodes of a stored one, followed by those of recordings; the manifest is written last.

    Args:
        build: An empty folder for the new version.
        stored: The dataset; None for a new one.
        recordings: At least one recording; none that the dataset holds.

    Raises:
        InvalidArgumentError: If the columns differ, or the dataset was preprocessed.
        IntegrityError: If a file of a recording cannot be read, or the new version is not what it should be.
        DiskFullError: If the new version does not fit on the disk.
    """
    first = recordings[0]
    schema = first.schema if stored is None else stored.schema
    for recording in recordings:
        _check_fits(recording, schema, None if stored is None else stored.manifest)
    size = sum(map(disk.tree_bytes, [recording.folder for recording in recordings]))
    disk.require_free(build, size + (0 if stored is None else stored.manifest.bytes), "the new version of the dataset")
    steps = sum(recording.steps for recording in recordings) + (0 if stored is None else len(stored))
    written = _write_rows(build, stored, recordings, steps)
    before = (
        Manifest(first.dataset_id, 0, 0, 0, schema, (), score=first.description.get("score", {}))
        if stored is None
        else replace(stored.manifest, raw=(), selection={}, revision="")
    )
    arrays = {
        name: np.array(map_npy(stored.folder / file)) if stored is not None and (file := array_file(value)) else value
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
        recordings=(*before.recordings, *(recording.entry for recording in recordings)),
    )
    manifest.write(build)
    _check_version(build, steps, before.episodes + appended)
    return manifest


def _check_fits(recording: SavedRecording, schema: Schema, manifest: Manifest | None) -> None:
    if manifest is not None and manifest.history:
        raise InvalidArgumentError(
            f"{recording.folder} has episodes for {manifest.id}, which was preprocessed in place since, and a "
            "preprocessed dataset does not grow",
            hint="undo the preprocessing, or move the folder away",
        )
    if differences := column_differences(schema, data_columns(recording.schema)):
        raise InvalidArgumentError(
            f"the episodes in {recording.folder} do not fit {recording.dataset_id}: {'; '.join(differences)}",
            hint="record them as another dataset, or move the folder away",
        )


def _write_rows(
    build: Path, stored: StoredDataset | None, recordings: Sequence[SavedRecording], steps: int
) -> DatasetSummary:
    schema = recordings[0].schema if stored is None else stored.schema
    writer = DatasetWriter(build, data_columns(schema), name=recordings[0].dataset_id, steps=steps)
    try:
        if stored is not None:
            writer.append_partial(stored.folder, _commit_of_dataset(stored))
        episodes = 0 if stored is None else len(stored.episodes)
        for recording in recordings:
            numbers = list(range(episodes, episodes + recording.episodes))
            facts = {**recording.commit["facts"], "source": ("<i8", numbers)}
            writer.append_partial(recording.folder, {**recording.commit, "facts": facts})
            episodes += recording.episodes
        return writer.finish()
    finally:
        writer.discard()


def _check_version(build: Path, steps: int, episodes: int) -> None:
    """Check that a new version opens and has all episodes, before it replaces the dataset.

    Raises:
        IntegrityError: If it does not.
    """
    problems = check_manifest(build).problems
    opened = StoredDataset(build)
    if (len(opened), len(opened.episodes)) != (steps, episodes):
        problems.append(
            f"it has {len(opened):,} steps of {len(opened.episodes):,} episodes; expected {steps:,} of {episodes:,}"
        )
    if problems:
        raise IntegrityError(str(build), problems)


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
    rows = {name: len(stored.map(name)) for name in stored.schema.array_files}
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
