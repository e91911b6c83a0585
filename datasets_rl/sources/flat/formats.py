"""Formats of files of arrays. A format is the ends of file names, the first bytes, and the class that opens a file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl.sources.flat.folders import NPY, ZARR, DataFolder, data_folders

if TYPE_CHECKING:
    from datasets_rl.sources.flat.arrays import ArrayFile


@dataclass(frozen=True, slots=True)
class Format:
    """Format of files of arrays."""

    title: str
    endings: tuple[str, ...]
    reader: str
    """Module in this folder, and class that opens a file, with the path, and the name of the file in errors."""
    magic: bytes = b""
    """First bytes of every file, or empty if they differ."""
    is_table: bool = False
    """Whether such a file often describes data in other formats: beside such formats, the file is not data itself."""
    in_folder: str = ""
    """Pattern of the names of data files in a folder, if most files with these endings are not data."""

    def fits(self, path: str, *, alone: bool) -> bool:
        """Return whether the name of a file says that the file has data in this format."""
        is_named = path.lower().endswith(self.endings)
        return is_named and (alone or not self.in_folder or re.search(self.in_folder, path) is not None)


FORMATS: Mapping[str, Format] = {
    "hdf5": Format("HDF5", (".hdf5", ".h5"), "arrays.Hdf5Arrays", b"\x89HDF\r\n\x1a\n"),
    "npz": Format("npz", (".npz",), "trees.open_npz", b"PK"),
    "parquet": Format("Parquet", (".parquet",), "ray_tables.open_table", b"PAR1"),
    "arrow": Format("Arrow", (".arrow", ".feather"), "ray_tables.open_table"),
    "pickle": Format("pickle", (".pkl", ".pickle"), "trees.PickleFile"),
    "npy": Format("npy", (".npy",), "trees.ObjectsFile", b"\x93NUMPY"),
    NPY: Format("npy files", (), "npy_folders.NpyFolder", b"\x93NUMPY"),
    ZARR: Format("zarr", (".zarr.zip",), "zarrs.ZarrFile"),
    "csv": Format("CSV", (".csv", ".csv.gz", ".tsv", ".tsv.gz"), "csv_tables.CsvFile", is_table=True),
    "jsonl": Format(
        "JSON lines", (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"), "json_files.open_json", is_table=True
    ),
    "json": Format(
        "JSON",
        (".json", ".json.gz"),
        "json_files.open_json",
        is_table=True,
        in_folder=r"(^|/)output-[^/]*_worker-\d+_\d+\.json(\.gz)?$",  # RLlib's
    ),
}
ENDINGS = (*(ending for form in FORMATS.values() for ending in form.endings), ".zip")
"""Ends of the names of files that may be datasets alone. An archive of an episode each is read by a source."""


def formats_of(paths: Sequence[str], folders: Mapping[str, DataFolder] | None = None) -> dict[str, str]:
    """Return the format of each data file, by path: tables of text are data only where there is no other format.

    Args:
        paths: The paths.
        folders: The folders that are files of arrays, by the path that stands for the folder, as `data_folders` returns.
    """
    folders = data_folders(paths) if folders is None else folders
    inside = {member for folder in folders.values() for member in folder.members}
    formats = {path: folders[path].format for path in paths if path in folders}
    alone = len(paths) == 1
    formats |= {
        path: name
        for path in paths
        if path not in inside
        for name, form in FORMATS.items()
        if form.fits(path, alone=alone)
    }
    data = {path: name for path, name in formats.items() if not FORMATS[name].is_table}
    return data or formats


def open_arrays(
    path: Path, file_format: str, name: str, table: Path | None = None, columns: Sequence[str] = ()
) -> ArrayFile:
    """Open a file.

    Args:
        path: The file.
        file_format: A name in `FORMATS`.
        name: Name of the file in errors.
        table: A Parquet file with a row per episode. The columns of the file are added as ``episodes/<column>``.
        columns: The names of the columns of a CSV file without a header.

    Raises:
        ConversionError: If the file is damaged or has another format.
        MissingDependencyError: If pyarrow is needed and not installed.
    """
    if table is not None:
        from datasets_rl.sources.flat.arrays import TableArrays, WithEpisodes

        return WithEpisodes(open_arrays(path, file_format, name), TableArrays(table, table.name))
    module, _, reader = FORMATS[file_format].reader.partition(".")
    stated = {"columns": columns} if columns else {}
    opened: ArrayFile = getattr(import_module(f"datasets_rl.sources.flat.{module}"), reader)(path, name, **stated)
    return opened
