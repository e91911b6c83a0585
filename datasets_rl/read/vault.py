"""Reader of Vaults, in which flashbax stores replay buffers: zarr arrays in an OCDBT store, in a zip file.

    3m.vlt/Good/metadata.json        {"version": 1.2, "structure_shape": {"observations": "(1, 2000, 3, 30)", ...}, ...}
    3m.vlt/Good/manifest.ocdbt       the store, with the data in d/: an array for each leaf of the structure,
    3m.vlt/Good/d/0f3c...            [1, 10**13, ...], of which `vault_index` rows were written

TensorStore reads the arrays in place, a chunk at a time. Nothing is unpacked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from datasets_rl.errors import ConversionError, LibraryError
from datasets_rl.libraries import importing, with_version
from datasets_rl.read.streams import AGAIN, first_problems
from datasets_rl.read.tensorstores import CACHE_BYTES, CHUNK_MAX_BYTES, LIBRARY_ERRORS, fault, first_sentence
from datasets_rl.read.zips import ZipReader

_METADATA = "metadata.json"
_STORE = "manifest.ocdbt"
_METADATA_MAX_BYTES = 1 << 20


def require_tensorstore() -> Any:
    """Return the module tensorstore.

    Raises:
        MissingDependencyError: If tensorstore is not installed.
        LibraryError: If tensorstore cannot read vaults.
    """
    with importing("tensorstore", "vault", "reading vaults"):
        import tensorstore
    try:
        tensorstore.Spec(_spec("any.zip", "any.vlt/", "any"))
    except ValueError as error:  # which would also be that of a damaged file
        raise LibraryError(with_version("tensorstore"), first_sentence(error)) from error
    return tensorstore


def vault_names(archive: ZipReader) -> dict[str, str]:
    """Return the folder of each vault in an archive, by name, which is the last name of the folder."""
    folders = [name.removesuffix(_METADATA) for name in archive.members if name.endswith(f"/{_METADATA}")]
    return {folder.rstrip("/").rpartition("/")[2]: folder for folder in sorted(folders)}


def find_vaults(stream: BinaryIO) -> dict[str, str]:
    """Return the folder of each vault in a zip file, by name. A vault has a store beside the description.

    Raises:
        ConversionError: If the stream is not a zip file, or the directory is damaged.
    """
    with ZipReader(stream) as archive:
        vaults = vault_names(archive).items()
        return {name: folder for name, folder in vaults if f"{folder}{_STORE}" in archive.members}


class Vault:
    """Open vault in a zip file. A context manager.

    Args:
        path: The zip file.
        name: Name of the vault, ``Good``.

    Raises:
        MissingDependencyError: If tensorstore is not installed.
        LibraryError: If tensorstore cannot read vaults.
        ConversionError: If the file has no such vault, or the vault is damaged. The error names every problem.
        OSError: If the system refuses to read the file.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._store = require_tensorstore()
        self._path = path
        self.name = f"{path.name}: {name}"
        with ZipReader(path) as archive:
            folders = vault_names(archive)
            if name not in folders:
                found = ", ".join(folders) or "none"
                raise ConversionError(path.name, [f"it has no vault {name}, only {found}"])
            self._folder = folders[name]
            self.leaves = self._read_structure(archive)
        self._context = self._store.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
        self.rows = int(self._read(self._open("vault_index"), np.s_[:1])[0])
        self._arrays: dict[str, Any] = {leaf: self._open(f"{leaf}.") for leaf in self.leaves}
        if problems := [*self._problems()]:
            raise ConversionError(self.name, first_problems(problems), hint=AGAIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._arrays.clear()

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of a row of each leaf, by dotted name."""
        return {leaf: tuple(array.shape[2:]) for leaf, array in self._arrays.items()}

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """The dtype of each leaf, by dotted name."""
        return {leaf: np.dtype(array.dtype.numpy_dtype) for leaf, array in self._arrays.items()}

    def read(self, leaves: Mapping[str, Any] | list[str], start: int, stop: int) -> dict[str, NDArray[Any]]:
        """Read the rows [start, stop) of leaves, [stop - start, ...] each.

        Raises:
            ConversionError: If the rows cannot be decoded.
            OSError: If the system refuses to read the rows.
        """
        pending = {leaf: self._arrays[leaf][0, start:stop].read() for leaf in leaves}
        found = {}
        for leaf, future in pending.items():
            try:
                found[leaf] = np.asarray(future.result())
            except LIBRARY_ERRORS as error:
                raise fault(error, self.name, f"{leaf} rows {start:,} to {stop - 1:,}: ") from error
        return found

    def _read_structure(self, archive: ZipReader) -> list[str]:
        """Return the dotted names of the leaves of the structure."""
        member = f"{self._folder}{_METADATA}"
        if archive.members[member].size > _METADATA_MAX_BYTES:
            raise ConversionError(
                self.name, [f"{_METADATA} has {archive.members[member].size:,} bytes, expected a small file"]
            )
        with archive.open(member) as stream:
            data = stream.read(_METADATA_MAX_BYTES + 1) or b""
        try:
            document = json.loads(data)
            structure, version = document["structure_shape"], int(document["version"])
        except (ValueError, KeyError, TypeError) as error:
            problem = f"{_METADATA} does not describe a vault: {error!r:.80}"
            raise ConversionError(self.name, [problem], hint=AGAIN) from error
        if version != 1:
            raise ConversionError(self.name, [f"its version is {document['version']}, expected 1"])
        return list(_leaves(structure))

    def _open(self, path: str) -> Any:
        """Open an array of the store."""
        spec = _spec(str(self._path), self._folder, path)
        try:
            return self._store.open(spec, read=True, context=self._context).result()
        except LIBRARY_ERRORS as error:
            raise fault(error, self.name, f"{path.rstrip('.')}: ") from error

    def _read(self, array: Any, rows: Any) -> NDArray[Any]:
        try:
            return np.asarray(array[rows].read().result())
        except LIBRARY_ERRORS as error:
            raise fault(error, self.name) from error

    def _problems(self) -> Iterator[str]:
        if self.rows < 0:
            yield f"vault_index is {self.rows}, expected the number of rows"
        for leaf, array in self._arrays.items():
            shape = tuple(array.shape)
            chunk = tuple(array.chunk_layout.read_chunk.shape or ())
            size = prod(chunk) * np.dtype(array.dtype.numpy_dtype).itemsize
            if len(shape) < 2 or shape[0] != 1:
                yield f"{leaf} is {list(shape)}, expected [1, rows, ...]"
            elif shape[1] < self.rows:
                yield f"{leaf} has {shape[1]:,} rows, but vault_index is {self.rows:,}"
            if size > CHUNK_MAX_BYTES:
                yield f"{leaf} has chunks of {size:,} bytes, expected at most {CHUNK_MAX_BYTES:,}"


def _leaves(structure: Any, prefix: str = "") -> Iterator[str]:
    for name, value in structure.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _spec(file: str, folder: str, path: str) -> dict[str, Any]:
    """Return where TensorStore finds an array: the path in the store in a folder of a zip file."""
    archive = {"driver": "zip", "base": {"driver": "file", "path": file}, "path": folder}
    return {"driver": "zarr", "kvstore": {"driver": "ocdbt", "base": archive, "path": path}}
