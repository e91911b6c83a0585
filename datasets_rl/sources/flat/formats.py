"""Formats of files of arrays. A format is the ends of file names, the first bytes, and the class that opens a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from datasets_rl.sources.flat.folders import NPY, ZARR, DataFolder, data_folders
from datasets_rl.ted.keys import natural_order

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
    beside: tuple[str, ...] = ()
    """Ends of the names of other files that the rows of such a file may name, or that belong to the file."""
    in_folder: str = ""
    """Pattern of the names of data files in a folder, if most files with these endings are not data."""

    def fits(self, path: str, *, alone: bool) -> bool:
        """Return whether the name of a file says that the file has data in this format."""
        is_named = path.lower().endswith(self.endings)
        return is_named and (alone or not self.in_folder or re.search(self.in_folder, path) is not None)


IMAGES = (".jpg", ".jpeg", ".png")
VIDEOS = (".mp4", ".m4v", ".mov", ".mkv", ".webm", ".avi")
"""Ends of the names of images and of videos, in lower case."""
_FRAMES = (*IMAGES, *VIDEOS)

FORMATS: Mapping[str, Format] = {
    "hdf5": Format("HDF5", (".hdf5", ".h5"), "arrays.Hdf5Arrays", b"\x89HDF\r\n\x1a\n"),
    "npz": Format("npz", (".npz",), "trees.open_npz", b"PK"),
    "parquet": Format("Parquet", (".parquet",), "ray_tables.open_table", b"PAR1", beside=_FRAMES),
    "arrow": Format("Arrow", (".arrow", ".feather"), "ray_tables.open_table", beside=_FRAMES),
    "pickle": Format("pickle", (".pkl", ".pickle"), "trees.PickleFile"),
    "npy": Format("npy", (".npy",), "trees.ObjectsFile", b"\x93NUMPY"),
    NPY: Format("npy files", (), "npy_folders.NpyFolder", b"\x93NUMPY"),
    ZARR: Format("zarr", (".zarr.zip",), "zarrs.ZarrFile"),
    "csv": Format("CSV", (".csv", ".csv.gz", ".tsv", ".tsv.gz"), "csv_tables.CsvFile", is_table=True, beside=_FRAMES),
    "jsonl": Format(
        "JSON lines",
        (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz"),
        "json_files.open_json",
        is_table=True,
        beside=_FRAMES,
    ),
    "json": Format(
        "JSON",
        (".json", ".json.gz"),
        "json_files.open_json",
        is_table=True,
        beside=_FRAMES,
        in_folder=r"(^|/)output-[^/]*_worker-\d+_\d+\.json(\.gz)?$",  # RLlib's
    ),
    # The files of the following formats are recognized by whole names, in `formats_of`.
    "driving-log": Format("Udacity's driving logs", (), "driving_logs.DrivingLog", is_table=True, beside=_FRAMES),
    "tub": Format("Donkeycar's tubs", (), "tubs.TubFile", beside=(*IMAGES, ".catalog", ".catalog_manifest")),
    "tub-1": Format("Donkeycar's tubs of version 1", (), "tubs.RecordsFile", beside=(*IMAGES, ".json")),
}
_DRIVING_LOG = "driving_log.csv"
_TUB = "manifest.json"
_CATALOG = re.compile(r"(^|/)catalog_\d+\.catalog$")
_RECORD = re.compile(r"record_\d{1,15}\.json")
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
    formats |= _formats_by_name(paths)
    data = {path: name for path, name in formats.items() if not FORMATS[name].is_table}
    return data or formats


def _formats_by_name(paths: Sequence[str]) -> dict[str, str]:
    """Return the format of each data file of a format whose files are known by the whole name, or by names beside."""
    formats: dict[str, str] = {}
    records: dict[str, str] = {}
    catalogs = {path.rpartition("/")[0] for path in paths if _CATALOG.search(path)}
    for path in paths:
        folder, _, name = path.rpartition("/")
        if name.lower() == _DRIVING_LOG:
            formats[path] = "driving-log"
        elif name == _TUB and folder in catalogs:
            formats[path] = "tub"
        elif _RECORD.fullmatch(name):
            records[folder] = min(path, records.get(folder, path), key=natural_order)
    return formats | dict.fromkeys(records.values(), "tub-1")


def is_image(path: str) -> bool:
    """Return whether the name of a file ends as the names of images do."""
    return path.strip().lower().endswith(IMAGES)


def files_beside(file_format: str, paths: Iterable[str]) -> list[str]:
    """Return the files that the rows of data files of a format may name, or that belong to the data files.

    Args:
        file_format: A name in `FORMATS`.
        paths: All files.
    """
    paths, endings = [*paths], FORMATS[file_format].beside
    data = formats_of(paths) if endings else {}
    return [path for path in paths if path.lower().endswith(endings) and path not in data] if endings else []


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
