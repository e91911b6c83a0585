"""Formats of files of arrays. A format is the ends of file names, the first bytes, and the class that opens a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

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


FORMATS: Mapping[str, Format] = {
    "hdf5": Format("HDF5", (".hdf5", ".h5"), "arrays.Hdf5Arrays", b"\x89HDF\r\n\x1a\n"),
    "npz": Format("npz", (".npz",), "arrays.NpzArrays", b"PK"),
    "parquet": Format("Parquet", (".parquet",), "arrays.TableArrays", b"PAR1"),
    "arrow": Format("Arrow", (".arrow", ".feather"), "arrays.TableArrays"),
    "pickle": Format("pickle", (".pkl", ".pickle"), "trees.PickleFile"),
    "npy": Format("npy", (".npy",), "trees.ObjectsFile", b"\x93NUMPY"),
    "csv": Format("CSV", (".csv", ".csv.gz", ".tsv", ".tsv.gz"), "text_tables.CsvFile", is_table=True),
    "jsonl": Format("JSON lines", (".jsonl", ".ndjson"), "text_tables.JsonLinesFile", is_table=True),
}
ENDINGS = (*(ending for form in FORMATS.values() for ending in form.endings), ".zip")
"""Ends of the names of files that may be datasets alone. An archive of an episode each is read by a source."""


def formats_of(paths: Sequence[str]) -> dict[str, str]:
    """Return the format of each data file, by path: tables of text are data only where there is no other format."""
    formats = {path: name for path in paths for name, form in FORMATS.items() if path.lower().endswith(form.endings)}
    data = {path: name for path, name in formats.items() if not FORMATS[name].is_table}
    return data or formats


def open_arrays(path: Path, file_format: str, name: str, table: Path | None = None) -> ArrayFile:
    """Open a file.

    Args:
        path: The file.
        file_format: A name in `FORMATS`.
        name: Name of the file in errors.
        table: A Parquet file with a row per episode. The columns of the file are added as ``episodes/<column>``.

    Raises:
        ConversionError: If the file is damaged or has another format.
        MissingDependencyError: If pyarrow is needed and not installed.
    """
    if table is not None:
        from datasets_rl.sources.flat.arrays import TableArrays, WithEpisodes

        return WithEpisodes(open_arrays(path, file_format, name), TableArrays(table, table.name))
    module, _, reader = FORMATS[file_format].reader.partition(".")
    opened: ArrayFile = getattr(import_module(f"datasets_rl.sources.flat.{module}"), reader)(path, name)
    return opened
