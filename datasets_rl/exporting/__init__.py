"""Export of stored datasets to the formats of other projects.

    export("demo/pendulum", "hdf5", "./pendulum")

A format is a file in this folder. `datasets_rl.exporting.base` has the contract.
"""

from __future__ import annotations

from pathlib import Path

from datasets_rl.exporting.content import Content
from datasets_rl.exporting.formats import FORMATS
from datasets_rl.exporting.run import ExportPlan, plan_export, run_export
from datasets_rl.format.reader import StoredDataset
from datasets_rl.settings import Settings
from datasets_rl.store.find import locate

__all__ = ["FORMATS", "Content", "ExportPlan", "export", "plan_export", "run_export"]


def export(
    dataset: str | Path,
    to: str,
    out: Path | str | None = None,
    *,
    force: bool = False,
    lossy: bool = False,
    fps: float | None = None,
    images: str = "",
    root: Path | str | None = None,
    settings: Settings | None = None,
) -> Path:
    """Write a stored dataset in the format of another project.

    The export appears under its name at once, when it is complete. If the process is killed, the same call completes it.
    What the format cannot hold is reported before anything is written, and listed in docs/export.md.

    Args:
        dataset: The id or the folder of the dataset.
        to: The format: "d3rlpy", "d4rl", "hdf5", "lerobot", "minari", "npz", "parquet", "rlds" or "torchrl".
        out: The file or the folder to write. By default a path in the working directory, named after dataset and
            format.
        force: Replace an existing file or export.
        lossy: Leave out what the format cannot hold.
        fps: Steps per second, for LeRobot. By default the number in the metadata.
        images: How images are written, for LeRobot: "encoded", in the tables, or "video". By default, frames of stored
            videos stay videos, and others are encoded, so that nothing is lost.
        root: The folder of the source. By default ``<RLDS_HOME>/<source>``.
        settings: Settings instead of the settings of the environment.

    Returns:
        The path of the export. If the same export is there already, nothing is written.

    Raises:
        InvalidArgumentError: If there is no such format, the format cannot write images so, the target exists, or the
            dataset cannot be written in this format. The error names all reasons.
        LossyExportError: If the format cannot hold everything and `lossy` is False. The error names all losses.
        MissingDependencyError: If the library of the format is not installed.
        UnknownIdError: If there is no such dataset.
        DiskFullError: If the export does not fit on the disk.
        LockedError: If another process writes the same export.
    """
    settings = settings or Settings.from_env()
    folder = locate(dataset, root=root, settings=settings)
    return run_export(
        Content(StoredDataset(folder), fps=fps, images=images),
        to,
        out,
        force=force,
        lossy=lossy,
        show=settings.progress,
    )
