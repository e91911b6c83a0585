"""Recorder of a process that adds episodes: writes recordings, and adds the recordings to the dataset."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from datasets_rl import disk, sources, store
from datasets_rl.errors import Argument, DatasetsRLError, InvalidArgumentError, RecordingWarning, Remedy
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.reader import StoredDataset
from datasets_rl.format.schema import Column
from datasets_rl.read.compressed_frames import FrameDictionary
from datasets_rl.recording.adding import add_abandoned_recordings, add_recordings, column_differences
from datasets_rl.recording.recording import Recording
from datasets_rl.settings import Settings
from datasets_rl.store import DatasetPaths
from datasets_rl.store.layout import OWN_SOURCE
from datasets_rl.store.publish import mark_as_own, remove_if_empty
from datasets_rl.ted.keys import Key

_CALLER = 4
"""The number of frames from a warning of a recorder to the caller of the public function that opened the recorder."""


def paths_of_own(dataset: str, *, root: Path | str | None = None, settings: Settings | None = None) -> DatasetPaths:
    """Return the paths of a local dataset, which need not exist yet.

    Raises:
        InvalidArgumentError: If the dataset is not an id of the source ``local``.
    """
    if not isinstance(dataset, str):
        raise InvalidArgumentError(
            f"episodes are added to {dataset!r}, expected an id {OWN_SOURCE}/NAME",
            hint=f"choose the folder of the datasets with root=: dataset='{OWN_SOURCE}/NAME', root={str(dataset)!r}",
        )
    if dataset and "/" not in dataset:
        raise InvalidArgumentError(
            f"episodes are added to {dataset!r}, expected an id {OWN_SOURCE}/NAME",
            hint=f"name the dataset {OWN_SOURCE}/{dataset}",
        )
    if sources.find(dataset).source != OWN_SOURCE or sources.split_derived(dataset)[1]:
        raise InvalidArgumentError(
            f"episodes cannot be added to {dataset}, expected an id {OWN_SOURCE}/NAME",
            hint=f"the ids of other sources are of published datasets: choose an id {OWN_SOURCE}/NAME",
        )
    return store.dataset_paths(dataset, root=root, settings=settings)


def signed_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the stored dtype of values: torch cannot gather unsigned integers of 16 bits and more."""
    return np.dtype({"u2": np.int32, "u4": np.int64, "u8": np.int64}.get(dtype.str[1:], dtype))


class Recorder:
    """Recorder of a process for a local dataset. The constructor adds the recordings of dead processes.

    Args:
        dataset: An id ``local/NAME``. The dataset need not exist yet.
        description: Additional entries of the manifest of a new dataset, as in `Recording`.
        root: The folder of the source, by default ``<RLDS_HOME>/local``.
        settings: The settings, by default from the environment.

    Raises:
        InvalidArgumentError: If the dataset is not of the source ``local``.
    """

    def __init__(
        self,
        dataset: str,
        description: Mapping[str, Any],
        *,
        root: Path | str | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.id = dataset
        self.paths = paths_of_own(dataset, root=root, settings=settings)
        self._description = description
        self._recording: Recording | None = None
        self._finished: list[Path] = []
        try:
            self._warn_of(add_abandoned_recordings(self.paths, self.id).values())
            store.sweep_dataset(self.paths)
        except (DatasetsRLError, OSError) as error:
            self._warn_of([error])
        self.stored = Manifest.read(self.paths.folder) if self.paths.exists else None

    def _warn_of(self, errors: Iterable[Exception]) -> None:
        for error in errors:
            reason, hint = (error.message, error.remedy) if isinstance(error, DatasetsRLError) else (str(error), "")
            warning = RecordingWarning(f"recorded episodes are not a part of {self.id}: {reason}", hint=hint)
            warnings.warn(warning, stacklevel=_CALLER)

    def held_numbers(self, identity: str) -> NDArray[np.int64] | None:
        """Return the numbers in this dataset of the episodes of a stored dataset, [E], or None if they were not added.

        Args:
            identity: The digest of the files of the stored dataset, which may be this dataset itself.
        """
        if self.stored is None:
            return None
        numbers: NDArray[np.int64] = StoredDataset(self.paths.folder).episodes["source"]
        if identity == self.stored.files_digest:
            return numbers
        entries = [entry.partition(":") for entry in self.stored.recordings]
        stops = len(numbers) - np.cumsum([0, *(int(count) for *_, count in reversed(entries))])
        for (name, _, count), stop in zip(reversed(entries), stops, strict=False):
            if name == identity:
                return numbers[stop - int(count) : stop]
        return None

    def check_grows(self) -> None:
        """Check that the dataset was not preprocessed.

        Raises:
            InvalidArgumentError: If the dataset was preprocessed.
        """
        if self.stored is not None and self.stored.history:
            raise InvalidArgumentError(
                f"{self.id} was preprocessed in place, and a preprocessed dataset does not grow",
                hint=Remedy("undo the preprocessing, or use another place with {}", Argument("root")),
            )

    def check_columns(self, columns: Sequence[Column]) -> None:
        """Check that an existing dataset has these columns. A column of pixels and a column of compressed images fit.

        Raises:
            InvalidArgumentError: If the dataset has other columns. The error names all differences.
        """
        if self.stored is None:
            return
        if differences := column_differences(self.stored.schema, self._stored_forms(columns)):
            raise InvalidArgumentError(
                f"the episodes do not fit {self.id}: {'; '.join(differences)}",
                hint="choose another name for the dataset of these episodes",
            )

    def _stored_forms(self, columns: Sequence[Column]) -> list[Column]:
        """Return columns in the forms of an existing dataset: pixels and compressed images replace each other."""
        stored = {field.key: field for field in self.stored.schema} if self.stored else {}
        return [
            replace(column, form=stored.get(column.key, column).form)
            if column.image_form.takes_pixels and stored.get(column.key, column).image_form.takes_pixels
            else column
            for column in columns
        ]

    def recording(
        self,
        columns: Sequence[Column],
        recording_id: str = "",
        dictionaries: Mapping[Key, FrameDictionary] | None = None,
    ) -> Recording:
        """Return the open recording for episodes with these columns. The first call creates the recording.

        Args:
            columns: The columns of a step.
            recording_id: The id of the recording, by default a new id. A dataset never holds two recordings with the
                same id.
            dictionaries: The dictionaries of compressed images for a new dataset. An existing dataset already has
                dictionaries.
        """
        if self._recording is None:
            folder = self.paths.recorded / (recording_id or uuid4().hex)
            # Another process may have recorded the same episodes, and died since.
            abandoned = list(filter(disk.is_abandoned, disk.claims_of(folder)))
            for error in add_recordings(self.paths, self.id, abandoned).values():
                raise error
            if self.stored is not None:
                columns, dictionaries = self._stored_forms(columns), StoredDataset(self.paths.folder).dictionaries
            mark_as_own(self.paths)
            self._recording = Recording(disk.claim(folder), columns, self.id, self._description, dictionaries)
        return self._recording

    def end_recording(self) -> None:
        """End the current recording. `commit` adds the complete episodes of the recording."""
        if self._recording is not None:
            self._recording.writer.discard()
            self._finished.append(self._recording.folder)
            self._recording = None

    def commit(self) -> None:
        """Add all recorded episodes to the dataset, in an atomic step. Open readers do not see the new episodes.

        Raises:
            DiskFullError: If the new version does not fit on the disk. The recordings stay.
            LockedError: If another process changes the dataset for longer than an hour.
            IntegrityError: If a recording cannot be read again. The recording stays.
        """
        self.end_recording()
        if self._finished:
            kept = add_recordings(self.paths, self.id, self._finished)
            self._finished = [folder for folder in self._finished if folder in kept]
            for error in kept.values():
                raise error
            remove_if_empty(self.paths)
            self.stored = Manifest.read(self.paths.folder) if self.paths.exists else None

    def drop(self) -> None:
        """Delete the episodes that were recorded since the last commit."""
        self.end_recording()
        for folder in self._finished:
            disk.discard(folder, self.paths.folder)
        self._finished.clear()
        remove_if_empty(self.paths)

    def close(self) -> None:
        """Release the recordings. The next writer of the dataset adds the remaining episodes."""
        self.end_recording()
        for folder in self._finished:
            disk.release(folder)
        self._finished.clear()
