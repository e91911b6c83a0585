"""The methods of datasets that write them in the formats of other projects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from datasets_rl.errors import InvalidArgumentError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from datasets_rl.format.reader import StoredDataset
    from datasets_rl.storages.dataset import DatasetStorage
    from datasets_rl.storages.final_states import FinalUnknown
    from datasets_rl.ted.keys import Key


class ExportMethods:
    """Methods that write the episodes and fields that a dataset shows; transforms of batches are not applied."""

    stored: StoredDataset
    final_unknown: FinalUnknown | None

    if TYPE_CHECKING:

        def _stored_steps(self) -> DatasetStorage: ...

        def _visible_part(self, storage: DatasetStorage) -> tuple[NDArray[np.int64], dict[Key, Any]]: ...

    def export(
        self,
        to: str,
        out: Path | str | None = None,
        *,
        force: bool = False,
        lossy: bool = False,
        fps: float | None = None,
    ) -> Path:
        """Write the dataset in the format of another project, see `datasets_rl.export`.

            >>> dataset.export("hdf5", "./pendulum")

        Args:
            to: The format: "d3rlpy", "d4rl", "hdf5", "lerobot", "minari", "npz", "parquet", "rlds" or "torchrl".
            out: The file or the folder to write; by default one in the working directory, named after dataset and format.
            force: Replace an existing file or export.
            lossy: Leave out what the format cannot hold.
            fps: Steps per second, for LeRobot; by default those in the metadata.

        Returns:
            The path of the export.

        Raises:
            InvalidArgumentError: If there is no such format, the target exists, or the dataset cannot be written in this
                format.
            LossyExportError: If the format cannot hold everything and `lossy` is False; the error names all of it.
            MissingDependencyError: If the library of the format is not installed.
            DiskFullError: If the export does not fit on the disk.
        """
        from datasets_rl.exporting import Content, run_export
        from datasets_rl.settings import Settings

        if self.final_unknown in {"drop", "drop_truncated"}:
            raise InvalidArgumentError(
                f"final_unknown is {self.final_unknown!r}: whole episodes are exported, not the transitions that it shows",
                hint="open the dataset without final_unknown, or preprocess it with the step drop_unknown_final",
            )
        rows, fields = self._visible_part(self._stored_steps())
        whole = len(rows) == len(self.stored)
        numbers = np.repeat(np.arange(len(self.stored.episodes)), self.stored.episodes.lengths)
        content = Content(self.stored, None if whole else np.unique(numbers[rows]), fields, fps)
        return run_export(content, to, out, force=force, lossy=lossy, show=Settings.from_env().progress)

    def to_npz(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Path:
        """Write npz files, one per episode; see `export`."""
        return self.export("npz", out, force=force, lossy=lossy)

    def to_hdf5(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Path:
        """Write one HDF5 file with the keys of TED; see `export`."""
        return self.export("hdf5", out, force=force, lossy=lossy)

    def to_parquet(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Path:
        """Write Parquet tables of the steps and of the episodes; see `export`."""
        return self.export("parquet", out, force=force, lossy=lossy)

    def to_d4rl(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Path:
        """Write an HDF5 file in D4RL's layout; see `export`."""
        return self.export("d4rl", out, force=force, lossy=lossy)

    def to_lerobot(
        self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False, fps: float | None = None
    ) -> Path:
        """Write a LeRobot dataset, version 3.0; see `export`."""
        return self.export("lerobot", out, force=force, lossy=lossy, fps=fps)

    def to_rlds(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Path:
        """Write TFRecord files of TensorFlow Datasets; see `export`."""
        return self.export("rlds", out, force=force, lossy=lossy)

    def to_minari(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Any:
        """Write a Minari dataset and return it opened, a `minari.MinariDataset`; see `export`."""
        return self._opened("minari", out, force=force, lossy=lossy)

    def to_torchrl(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Any:
        """Write a memory-mapped TensorDict and return a `torchrl.data.TensorDictReplayBuffer` of it; see `export`."""
        return self._opened("torchrl", out, force=force, lossy=lossy)

    def to_d3rlpy(self, out: Path | str | None = None, *, force: bool = False, lossy: bool = False) -> Any:
        """Write a file of d3rlpy and return it loaded, a `d3rlpy.dataset.ReplayBuffer` in memory; see `export`."""
        return self._opened("d3rlpy", out, force=force, lossy=lossy)

    def _opened(self, to: str, out: Path | str | None, *, force: bool, lossy: bool) -> Any:
        from datasets_rl.exporting.formats import get_format

        return get_format(to).open(self.export(to, out, force=force, lossy=lossy))
