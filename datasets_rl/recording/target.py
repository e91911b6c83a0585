"""The dataset to which new episodes are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

from datasets_rl import disk, locating, sources, store
from datasets_rl.errors import InvalidArgumentError
from datasets_rl.format.manifest import Manifest
from datasets_rl.format.schema import Column
from datasets_rl.pipeline.recordings import Recording, column_differences
from datasets_rl.remedy import Argument, Remedy
from datasets_rl.settings import Settings

__all__ = ["Target"]

SOURCE = "local"


class Target:
    """The dataset to which one process adds episodes.

    Args:
        dataset: An id of the source ``local``, ``local/NAME``. The dataset need not exist yet.
        description: What the manifest of a new dataset states in addition; see `Recording`.
        name: Name of the recording, equal when the same command is run again after a kill; by default a new one.
        root: The folder of the source; by default ``<RLDS_HOME>/local``.
        settings: The settings; by default those of the environment.

    Raises:
        InvalidArgumentError: If the dataset is not of the source ``local``, or was preprocessed.
    """

    def __init__(
        self,
        dataset: str,
        description: Mapping[str, Any],
        *,
        name: str | None = None,
        root: Path | str | None = None,
        settings: Settings | None = None,
    ) -> None:
        if sources.find(dataset).source != SOURCE or sources.split_derived(dataset)[1]:
            raise InvalidArgumentError(
                f"episodes cannot be added to {dataset}; expected an id {SOURCE}/NAME",
                hint="the ids of other sources state what the dataset contains: choose a name for one of your own",
            )
        self.id = dataset
        self.paths = store.dataset_paths(dataset, root=root, settings=settings)
        self._description = description
        self._recording: Recording | None = None
        self._finished: list[Path] = []
        self._name = name
        self._held = ExitStack()
        self.done = False
        """Whether a process that died had recorded everything under this name; the dataset has it now."""
        if name is not None:
            folder = self.paths.recorded / name
            self._held.enter_context(disk.lock(locating.owner_file(folder), self.id))
            self.done = locating.add_recordings(self.paths, [folder])
        locating.add_abandoned_recordings(self.paths)
        self.stored = Manifest.read(self.paths.folder) if self.paths.exists else None
        if self.stored is not None and self.stored.history:
            raise InvalidArgumentError(
                f"{dataset} was preprocessed in place, and a preprocessed dataset does not grow",
                hint=Remedy("undo the preprocessing, or use another place with {}", Argument("root")),
            )

    def check_columns(self, columns: Sequence[Column]) -> None:
        """Check that the dataset, if it exists, has these columns.

        Raises:
            InvalidArgumentError: If it has others; the error names all differences.
        """
        if self.stored is not None and (differences := column_differences(self.stored.schema, columns)):
            raise InvalidArgumentError(
                f"the episodes do not fit {self.id}: {'; '.join(differences)}", hint="choose another name for them"
            )

    def recording(self, columns: Sequence[Column]) -> Recording:
        """Return the recording to which the episodes of these columns are appended; the first call creates it."""
        if self._recording is None:
            folder = self.paths.recorded / (self._name or uuid4().hex[:12])
            if self._name is None:
                self._held.enter_context(disk.lock(locating.owner_file(folder), self.id))
            self._recording = Recording(folder, columns, self.id, self._description)
        return self._recording

    def end_recording(self) -> None:
        """Write no further episodes into the current recording: `commit` adds those that are complete in it."""
        if self._recording is not None:
            self._recording.close()
            self._finished.append(self._recording.folder)
            self._recording = None

    def commit(self) -> None:
        """Add all recorded episodes to the dataset, in one atomic step; open readers keep the episodes they have.

        Raises:
            DiskFullError: If the new version does not fit on the disk; the recordings stay.
            LockedError: If another process changes the dataset for longer than an hour.
        """
        self.end_recording()
        if self._finished:
            locating.add_recordings(self.paths, self._finished)
            self._finished.clear()
            self._held.close()
            locating.remove_empty_folders(self.paths)
            self.stored = Manifest.read(self.paths.folder) if self.paths.exists else None

    def drop(self) -> None:
        """Delete what was recorded since the last commit."""
        self.end_recording()
        for folder in self._finished:
            disk.remove_tree(folder)
        self._finished.clear()
        self._held.close()
        locating.remove_empty_folders(self.paths)

    def close(self) -> None:
        """Release the recordings; whoever opens the dataset next adds the remaining episodes."""
        self.end_recording()
        self._held.close()
