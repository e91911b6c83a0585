"""Adding recordings to a dataset, by a new version: the episodes of the dataset, then the episodes of the recordings.

    recordings  ->  new version = dataset + recordings  ->  CURRENT  ->  recordings are deleted

The manifest of the new version lists the ids of the added recordings. A recording that a killed process did not delete
is therefore not added again. Only a recording that was read as a whole, and that the dataset holds, is deleted.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from datasets_rl import disk
from datasets_rl.build.conversion import read_metadata, specs_of_schema, write_metadata
from datasets_rl.build.partial import writer_columns
from datasets_rl.errors import DatasetsRLError, DiskFullError, IntegrityError, InvalidArgumentError, LockedError
from datasets_rl.format.images.compressed import dictionary_file
from datasets_rl.format.manifest import AppliedDecision, Manifest, converter_version
from datasets_rl.format.npy import map_npy
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column, Schema, stored_column
from datasets_rl.format.statistics import Moments, has_statistics
from datasets_rl.format.writer import Commit, DatasetSummary, DatasetWriter
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.recording.recording import DESCRIPTION_FILE, JOURNAL_FILE, SavedRecording
from datasets_rl.store import DatasetPaths, Version, current_version, versions_of
from datasets_rl.store.publish import SHORT_WAIT, building, canonical, locked, publish, remove_if_empty
from datasets_rl.ted.keys import Key, dotted_name

Kept: TypeAlias = "dict[Path, DatasetsRLError | OSError]"
"""Recordings that stay on the disk: the folder, and the reason."""
_MAX_ATTEMPTS = 20
_BLOCK_STEPS = 1 << 16
_RULE = "appended"
COPIES = "copies"
"""Key in the description of a recording: True for copies of episodes of the dataset, which keep the same numbers."""
_OWN_FILE = re.compile(
    rf"{re.escape(DESCRIPTION_FILE)}|{re.escape(JOURNAL_FILE)}|.+\.(npy|dictionary)"
    rf"|\.({re.escape(DESCRIPTION_FILE)}|{re.escape(JOURNAL_FILE)})@.+\.tmp"
)


def add_abandoned_recordings(paths: DatasetPaths, dataset_id: str) -> Kept:
    """Add the episodes that processes recorded for a dataset before they died.

    Returns:
        The recordings that stay, with the reasons.

    Raises:
        IntegrityError: If the dataset itself cannot be read, or ``recorded`` is not a folder.
        DiskFullError: If the new version does not fit on the disk. The recordings stay.
        LockedError: If another process is changing the dataset.
        OSError: If the folder of the recordings cannot be read.
    """
    disk.check_kind(paths.recorded, folder=True)
    if not (paths.is_own and paths.recorded.exists()):
        return {}
    abandoned = [folder for folder in sorted(paths.recorded.iterdir()) if disk.is_abandoned(folder)]
    kept = add_recordings(paths, dataset_id, abandoned, wait=SHORT_WAIT) if abandoned else {}
    remove_if_empty(paths)
    return kept


def add_recordings(paths: DatasetPaths, dataset_id: str, folders: Sequence[Path], *, wait: float = 3600.0) -> Kept:
    """Add the episodes of recordings to a dataset, by a new version of the dataset, and delete the recordings.

    A recording that cannot be read or does not fit stays, and the other recordings are added. If a recording is partly
    damaged, the episodes before the damage are added, and the recording stays. Episodes that the dataset holds are not
    added again.

    Args:
        paths: The dataset, which need not exist yet.
        dataset_id: The id of the dataset.
        folders: The folders of the recordings. No other process may be writing these recordings.
        wait: Seconds to wait for another process that changes the dataset.

    Returns:
        The recordings that stay, with the reasons.

    Raises:
        IntegrityError: If the dataset itself cannot be read.
        DiskFullError: If the new version does not fit on the disk. The recordings stay.
        LockedError: If another process is changing the dataset.
    """
    kept: Kept = {}
    saved: dict[Path, SavedRecording | None] = {}
    for folder in filter(os.path.lexists, folders):
        try:
            saved[folder] = _read(folder, dataset_id)
        except (DatasetsRLError, OSError) as error:
            kept[folder] = error
    if readable := [recording for recording in saved.values() if recording is not None]:
        paths.check_changeable()
        with locked(paths, paths.name, wait=wait):
            kept |= _add(paths, readable)
    held = Manifest.read(paths.folder).recordings if paths.exists else ()
    is_safe = _is_certainly_current(paths)
    for folder in [folder for folder in saved if folder not in kept]:
        if not _has_begun(saved[folder], held):
            kept[folder] = LockedError(paths.name, "processes that change the dataset without the lock", paths.lock)
        elif problem := _reason_to_keep(folder, saved[folder], held):
            kept[folder] = IntegrityError(str(folder), [problem], hint="move the folder away, or delete it")
        elif is_safe or saved[folder] is None:
            disk.discard(folder, paths.folder)
    return kept


def _read(folder: Path, dataset_id: str) -> SavedRecording | None:
    recording = SavedRecording.read(folder)
    if recording is not None and recording.dataset_id != dataset_id:
        raise IntegrityError(
            str(folder),
            [f"the recording is for {recording.dataset_id}, not for {dataset_id}"],
            hint="move the folder away",
        )
    return recording


def _has_begun(recording: SavedRecording | None, held: Collection[str]) -> bool:
    """Return whether a dataset holds episodes of a recording, or the recording has no episodes."""
    return recording is None or recording.id in {entry.partition(":")[0] for entry in held}


def _is_certainly_current(paths: DatasetPaths) -> bool:
    """Return whether no other process can publish a version without the episodes of the current version.

    A process that works without the lock from an earlier version has a build or a version beside the current version.
    In this case the recordings stay. The next command that adds recordings finds the ids of these recordings in the
    manifest, or adds the recordings again.
    """
    current = current_version(paths)
    is_last = current is None or paths.has_no_pointer or versions_of(paths)[-1:] == [current]
    return is_last and all(map(disk.is_abandoned, paths.builds()))


def _reason_to_keep(folder: Path, recording: SavedRecording | None, held: Collection[str]) -> str:
    """Return why an added or empty recording must not be deleted, or an empty text if the recording may be deleted."""
    if recording is not None and recording.damage:
        return f"{recording.damage}. The {recording.episodes:,} episodes before the damage are a part of the dataset"
    if recording is not None and recording.entry not in held:
        return "only the episodes that were not damaged were added, and now all episodes of the recording are whole"
    for path in sorted(folder.iterdir()):
        if not (_OWN_FILE.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode)):
            return f"the folder has {path.name}, which is not a file of a recording"
    return ""


def _add(paths: DatasetPaths, recordings: Sequence[SavedRecording]) -> Kept:
    """Publish versions until the current version holds all recordings. If a recording does not fit, add fewer at a time.

    Returns:
        The recordings that cannot be added, with the reasons.
    """
    kept: Kept = {}
    count = len(recordings)
    for _ in range(_MAX_ATTEMPTS * (1 + len(recordings))):
        parent = current_version(paths)
        try:
            held = () if parent is None else parent.manifest.recordings
            missing = [recording for recording in recordings if not _has_begun(recording, held)]
            new = [recording for recording in missing if recording.folder not in kept][:count]
            if not new:
                return kept
            error = _publish(paths, parent, new)
        except (DatasetsRLError, FileNotFoundError):
            if current_version(paths) == parent:
                raise
            continue
        if error is None or current_version(paths) != parent:
            continue
        if len(new) > 1:
            count = len(new) // 2
        else:
            kept[new[0].folder] = error
            count = len(recordings)
    raise LockedError(paths.name, "processes that change the dataset without the lock", paths.lock)


def _publish(
    paths: DatasetPaths, parent: Version | None, recordings: Sequence[SavedRecording]
) -> DatasetsRLError | OSError | None:
    """Publish a version with the episodes of the parent and of recordings. Return the error if this is impossible.

    Raises:
        LockedError: If another version is current in the meantime.
    """
    request = canonical({"append": [recording.entry for recording in recordings]})
    with building(paths, request, parent) as build:
        # A process without the lock that publishes after this line sees this build, and keeps its recordings.
        if current_version(paths) != parent:
            raise LockedError(paths.name, "a process that changes the dataset without the lock", paths.lock)
        disk.remove_tree(build.version, paths.folder)
        stored = None if parent is None else StoredDataset(parent.folder)
        build.version.mkdir()
        try:
            _write_version(build.version, stored, recordings)
        except (DatasetsRLError, OSError) as error:
            disk.remove_tree(build.work, paths.folder)
            if isinstance(error, DiskFullError):
                raise
            return error
        publish(build)
    return None


def _write_version(build: Path, stored: StoredDataset | None, recordings: Sequence[SavedRecording]) -> None:
    """Write a dataset: the episodes of a stored dataset, the episodes of recordings, and last the manifest.

    Args:
        build: An empty folder for the new version.
        stored: The dataset, or None for a new dataset.
        recordings: Recordings that the dataset does not hold, not empty.

    Raises:
        InvalidArgumentError: If the columns differ, or the dataset was preprocessed.
        IntegrityError: If a file of a recording cannot be read, or the new version has another number of steps or
            episodes than expected.
        DiskFullError: If the new version does not fit on the disk.
    """
    first = recordings[0]
    score = first.description.get("score", {})
    before = Manifest(first.dataset_id, 0, 0, 0, first.schema, (), score=score) if stored is None else stored.manifest
    for recording in recordings:
        _check_fits(recording, before)
    size = before.bytes + sum(disk.tree_bytes(recording.folder) for recording in recordings)
    disk.require_free(build, size, "the new version of the dataset")
    steps = before.steps + sum(recording.steps for recording in recordings)
    appended = sum(recording.episodes for recording in recordings)
    written = _write_rows(build, stored, before, recordings, steps)
    arrays = {} if stored is None else read_metadata(stored.folder, before.metadata)
    metadata, files = write_metadata(build, {**first.description["metadata"], **arrays})
    manifest = replace(
        before,
        steps=written.steps,
        episodes=written.episodes,
        final_unknown=written.final_unknown,
        schema=written.schema,
        files=(*written.files, *files),
        raw=(),
        converter=converter_version(),
        decisions=_with_appended(before.decisions, appended),
        statistics=written.statistics,
        spikes=written.spikes,
        specs=_specs(build, written, {**first.description["specs"], **before.specs}),
        metadata=metadata,
        selection={},
        revision="",
        recordings=(*before.recordings, *(recording.entry for recording in recordings)),
    )
    manifest.write(build)
    actual, expected = StoredDataset(build).episodes, (steps, before.episodes + appended)
    if (actual.steps, len(actual)) != expected:
        problem = (
            f"{actual.steps:,} steps of {len(actual):,} episodes are stored, expected {steps:,} of {expected[1]:,}"
        )
        raise IntegrityError(str(build), [problem])


def _check_fits(recording: SavedRecording, manifest: Manifest) -> None:
    if manifest.history:
        raise InvalidArgumentError(
            f"{recording.folder} has episodes for {manifest.id}. This dataset was preprocessed in place since, and a "
            "preprocessed dataset does not grow",
            hint="undo the preprocessing, or move the folder away",
        )
    if differences := column_differences(manifest.schema, writer_columns(recording.schema)):
        raise InvalidArgumentError(
            f"the episodes in {recording.folder} do not fit {recording.dataset_id}: {'; '.join(differences)}",
            hint="record the episodes as another dataset, or move the folder away",
        )


def column_differences(stored: Schema, columns: Sequence[Column]) -> list[str]:
    """Return the differences between the columns of new episodes and the columns of a dataset, a sentence each."""

    def described(column: Column) -> str:
        kinds = [name for name in ("shared", "text") if getattr(column, name)]
        kinds += [] if column.image_form.is_array else [column.form]
        return " ".join([column.dtype.name, str(list(column.shape)), *kinds])

    new = {dotted_name(column.key): described(stored_column(column)) for column in columns}
    old = {dotted_name(column.key): described(column) for column in writer_columns(stored)}
    return [
        f"{name} is {new.get(name, 'missing')}, and the dataset has {old.get(name, 'no such field')}"
        for name in sorted(new.keys() | old.keys())
        if new.get(name) != old.get(name)
    ]


def _write_rows(
    build: Path, stored: StoredDataset | None, before: Manifest, recordings: Sequence[SavedRecording], steps: int
) -> DatasetSummary:
    dictionaries = _dictionaries(before.schema, recordings[0].folder) if stored is None else stored.dictionaries
    for recording in recordings:
        _check_dictionaries(recording, before.schema, dictionaries)
    writer = DatasetWriter(build, writer_columns(before.schema), name=before.id, steps=steps, dictionaries=dictionaries)
    try:
        if stored is not None:
            writer.append_partial(stored.folder, _commit_of_dataset(stored))
        # A part of a dataset has episodes with higher numbers than their count.
        first = 0 if stored is None else int(max(stored.episodes["source"].max(), stored.episodes.numbers.max())) + 1
        for recording in recordings:
            facts = recording.commit["facts"]
            if not recording.description.get(COPIES):
                facts = {**facts, "source": ("<i8", list(range(first, first + recording.episodes)))}
                first += recording.episodes
            writer.append_partial(recording.folder, {**recording.commit, "facts": facts}, recording.schema)
        return writer.finish()
    finally:
        writer.discard()


def _dictionaries(schema: Schema, folder: Path) -> dict[Key, FrameDictionary]:
    """Return the dictionaries in the folder of a recording."""
    keys = [field.key for field in schema if field.image_form.has_dictionary]
    return {key: FrameDictionary((folder / dictionary_file(key)).read_bytes()) for key in keys}


def _check_dictionaries(recording: SavedRecording, schema: Schema, dictionaries: Mapping[Key, FrameDictionary]) -> None:
    """Check that the images of a recording are compressed like the dataset's, which another process created."""
    own = _dictionaries(schema, recording.folder)
    if other := [dotted_name(key) for key, dictionary in dictionaries.items() if own[key].data != dictionary.data]:
        raise InvalidArgumentError(
            f"the images of {', '.join(other)} in {recording.folder} are compressed with another dictionary than the "
            f"images of {recording.dataset_id}, which was created in the meantime",
            hint="append the episodes again, and delete the folder",
        )


def _commit_of_dataset(stored: StoredDataset) -> Commit:
    """Return a stored dataset as the result of the only commit of a `DatasetWriter`."""
    schema, table = stored.schema, stored.episodes
    moments = {field: Moments(field.shape) for field in schema if has_statistics(field)}
    for start in range(0, len(stored), _BLOCK_STEPS):
        for field, values in moments.items():
            values.update(stored.column(field.key, start, start + _BLOCK_STEPS))
    facts = {name: table[name] for name in table.metadata_names}
    return {
        "open_steps": 0,
        "open_return": 0.0,
        "stale": [],
        "lengths": table.lengths.tolist(),
        "known": table["final_known"].tolist(),
        "returns": table["return"].tolist(),
        "facts": {name: (values.dtype.str, values.tolist()) for name, values in facts.items()},
        "moments": {field.name: values.state() for field, values in moments.items()},
        "rows": {name: len(stored.map(name)) for name in schema.array_files},
        "words": {field.name: [*stored.texts(field.key)][1:] for field in schema if field.text},
    }


def _specs(build: Path, written: DatasetSummary, specs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specs of all fields. If values exceed the bounds of a spec, a spec of dtype and shape replaces it."""
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
    text = "Episodes that were recorded or appended, in this order, after the episodes of any files."
    kept = [decision for decision in decisions if decision.rule != _RULE]
    return (*kept, AppliedDecision(_RULE, text, earlier + episodes))
