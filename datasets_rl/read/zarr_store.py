"""Reader of stores of zarr, versions 2 and 3: a folder, or a zip file with such a folder.

TensorStore decodes the chunks of arrays of numbers, and nothing is unpacked on the disk. Chunks that are images, as in the
replay buffers of diffusion policy (JPEG 2000) and UMI (JPEG XL), are decoded here.
"""

from __future__ import annotations

import io
import json
import math
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self, override

from datasets_rl.errors import ConversionError
from datasets_rl.libraries import importing
from datasets_rl.read.streams import AGAIN, LFS, first_problems
from datasets_rl.read.tensorstores import CACHE_BYTES, CHUNK_MAX_BYTES, LIBRARY_ERRORS, fault
from datasets_rl.read.threads import run_on_all_cores
from datasets_rl.read.zarr_arrays import (
    NotZarrError,
    ZarrArray,
    read_metadata_2,
    read_metadata_3,
)
from datasets_rl.read.zarr_paths import (
    ARRAY_2,
    ARRAY_3,
    ATTRIBUTES_2,
    CONSOLIDATED,
    MARKERS,
    array_of_chunk,
    folders_above,
    roots_of,
)
from datasets_rl.read.zips import ZipReader

_METADATA_MAX_BYTES = 64 << 20
_BLOSC_HEADER = 16
_PIECE = 1 << 20
_HELD_MAX_BYTES = 2 * CHUNK_MAX_BYTES
"""Maximum bytes of the chunks of an array that are copied from a zip file at once."""
_REWRITE = (
    "write the array again with zarr, import zarr; root = zarr.open({0!r}, mode='r+'); root[{1!r}] = root[{1!r}][:]"
)


class _Files(ABC):
    """Files of a store by key, which is the path below the folder of the store."""

    sizes: Mapping[str, int]
    folder: Path | None = None
    """Folder in which TensorStore can read the files, or None."""

    @abstractmethod
    def read(self, key: str) -> bytes:
        """Return a file.

        Raises:
            ConversionError: If the checksum of the file differs.
        """

    def close(self) -> None:
        """Close the files."""


class _Folder(_Files):
    def __init__(self, path: Path) -> None:
        self.folder = self._path = path
        self.sizes = dict(self._scan())

    @override
    def read(self, key: str) -> bytes:
        return (self._path / key).read_bytes()

    def _scan(self) -> Iterator[tuple[str, int]]:
        for parent, folders, names in os.walk(self._path):
            folders[:] = [name for name in folders if name[0] != "."]
            prefix = Path(parent).relative_to(self._path).as_posix()
            for name in names:
                if name[0] != "." or name in MARKERS:
                    with suppress(OSError):  # a link to nothing
                        status = Path(parent, name).stat()
                        if stat.S_ISREG(status.st_mode):
                            yield name if prefix == "." else f"{prefix}/{name}", status.st_size


class _Zip(_Files):
    def __init__(self, path: Path, name: str) -> None:
        try:
            # zarr appends another version of the attributes of a group.
            self._archive = ZipReader(path, name, repeated=MARKERS)
        except ConversionError as error:
            if any(problem.endswith("is duplicated") for problem in error.problems):
                error.hint = f"run `unzip -o {path.name}`, which keeps the last of such files, and give the folder"
            raise
        try:
            self._root = self._find_root(name)
        except BaseException:
            self._archive.close()
            raise
        self.sizes = {
            member.name.removeprefix(self._root): member.size
            for member in self._archive.members.values()
            if member.name.startswith(self._root) and not member.name.endswith("/")
        }

    def _find_root(self, name: str) -> str:
        """Return the path of the folder of the store in the archive, with a slash at the end, or an empty text.

        Raises:
            ConversionError: If there is no store, there are several stores, or a path leads out of the archive.
        """
        outside = [path for path in self._archive.members if {"", ".", ".."} & {*path.rstrip("/").split("/")}]
        outside += [path for path in self._archive.members if "\\" in path]
        if outside:
            problems = [
                f"the path {path!r} leads out of the archive, expected names joined by slashes" for path in outside
            ]
            raise ConversionError(name, first_problems(problems))
        roots = roots_of(self._archive.members)
        if len(roots) != 1:
            found = ", ".join(sorted(roots)) or "none"
            raise ConversionError(name, [f"the archive has the stores {found}, expected one store of zarr"])
        return f"{roots[0]}/" if roots[0] else ""

    @override
    def read(self, key: str) -> bytes:
        with self._archive.open(self._root + key) as stream:
            return b"".join(iter(lambda: stream.read(_PIECE) or b"", b""))

    @override
    def close(self) -> None:
        self._archive.close()


class ZarrStore:
    """Open store of zarr. A context manager.

    Args:
        path: The folder, or the zip file.
        name: The name of the store in errors.

    Raises:
        MissingDependencyError: If tensorstore is not installed.
        ConversionError: If the metadata are damaged, or chunks belong to no array. The error names every problem.
        OSError: If the system refuses to read the store.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._tensorstore = require_tensorstore()
        self.name = name
        self._files: _Files = _Folder(path) if path.is_dir() else _Zip(path, name)
        try:
            self.arrays = self._read_arrays()
        except BaseException:
            self._files.close()
            raise
        self._context = self._tensorstore.Context({"cache_pool": {"total_bytes_limit": CACHE_BYTES}})
        self._opened: dict[str, Any] = {}
        self._memory: Any = None if self._files.folder else self._open_memory()
        """Store of TensorStore in memory, with the chunks of a zip file that are being read, or None for a folder.

        TensorStore checks no checksum of a zip file, and refuses files that were replaced.
        """
        self._held: dict[str, set[str]] = {}
        """Keys of the chunks that were read last, by array."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self._opened.clear()
        self._held.clear()
        self._memory = None
        self._files.close()

    def refusal(self, name: str) -> ConversionError | None:
        """Return the error about an array whose values cannot be read, or None."""
        array = self.arrays[name]
        problem = array.problem
        if problem:
            pass
        elif array.beyond:
            problem = (
                f"is {list(array.shape)} by its metadata, and has {len(array.beyond):,} chunks beyond that shape, "
                f"such as {array.beyond[0]}"
            )
        elif array.large:
            size = self._files.sizes[array.large[0]]
            problem = f"has the chunk {array.large[0]} of {size:,} bytes, more than its values can have"
        elif array.missing and array.metadata["fill_value"] is None:
            problem = f"lacks {array.missing:,} chunks, and no fill value is stated for such chunks"
        elif array.rewritten_by:
            problem = f"has the attributes {array.rewritten_by}, by which xarray changes the values"
        if not problem:
            return None
        hint = self.rewriting(name) if problem == array.problem else AGAIN
        if array.rewritten_by and "xarray" in problem:
            hint = f"store the values that xarray shows, xarray.open_zarr({self.name!r}), without these attributes"
        return ConversionError(self.name, [f"{name} {problem}"], hint=hint)

    def rewriting(self, name: str) -> str:
        """Return the lines that write an array again with the settings of zarr."""
        unpacked = "" if self._files.folder else "unpack the archive, and "
        return unpacked + _REWRITE.format(self.name.removesuffix(".zip"), name)

    def read(self, name: str, start: int, stop: int) -> NDArray[Any]:
        """Return the rows [start, stop) of an array, or the single value of an array without axes.

        Raises:
            ConversionError: If a chunk is damaged.
            MissingDependencyError: If imagecodecs is needed and not installed.
        """
        array = self.arrays[name]
        if refusal := self.refusal(name):
            raise refusal
        if array.codec:
            return self._read_images(array, start, stop)
        self._prepare(name, array, start, stop)
        if name not in self._opened:
            self._opened[name] = self._open(name, array)
        opened = self._opened[name]
        try:
            values = (opened[start:stop] if array.shape else opened).read().result()
        except LIBRARY_ERRORS as error:
            raise fault(error, self.name, f"{name} rows {start:,} to {stop - 1:,}: ") from error
        return np.asarray(values)

    def _read_arrays(self) -> dict[str, ZarrArray]:
        arrays: dict[str, ZarrArray] = {}
        problems: list[str] = []
        listed: dict[str, Any] = {}
        damaged: set[str] = set()
        for key in self._files.sizes:
            folder, _, last = key.rpartition("/")
            if last not in {ARRAY_2, ARRAY_3, CONSOLIDATED}:
                continue
            try:
                document = self._document(key)
                listed |= _consolidated(document, folder)
                array = (
                    None
                    if last == CONSOLIDATED
                    else (read_metadata_2 if last == ARRAY_2 else read_metadata_3)(document)
                )
            except NotZarrError as error:
                problems.append(f"{key} does not describe an array: {error}")
                damaged.add(folder)
                continue
            if array is not None:
                arrays[folder] = array
        problems += [
            f"{name} is listed in the metadata of the store, but has no metadata itself"
            for name in sorted(listed.keys() - {*arrays} - damaged)
        ]
        if "" in arrays:
            problems.append("it is a single array, expected a group of arrays")
        problems += self._add_chunks(arrays, damaged)
        if problems:
            raise ConversionError(self.name, first_problems(problems), hint=AGAIN)
        self._read_attributes(arrays)
        self._check_consolidated(arrays, listed)
        return dict(sorted(arrays.items()))

    def _read_attributes(self, arrays: Mapping[str, ZarrArray]) -> None:
        """Read the attributes of the arrays of version 2, which are files."""
        for name, array in arrays.items():
            if (key := f"{name}/{ATTRIBUTES_2}") in self._files.sizes:
                with suppress(NotZarrError):
                    stated = self._document(key)
                    array.attributes = stated if isinstance(stated, Mapping) else {}

    def _check_consolidated(self, arrays: Mapping[str, ZarrArray], listed: Mapping[str, Any]) -> None:
        """Check that the metadata of the store state the shapes and the dtypes of the arrays.

        Raises:
            ConversionError: If the metadata of the store are older than those of an array, or newer.
        """
        problems = []
        for name, document in listed.items():
            own = arrays[name].metadata if isinstance(document, Mapping) else {}
            for member in ("shape", "dtype", "data_type", "fill_value"):
                # NaN differs from itself.
                if member in own and member in document and repr(own[member]) != repr(document[member]):
                    stated = (
                        f"{name} has the {member} {own[member]}, and {document[member]} by the metadata of the store"
                    )
                    problems.append(stated)
        if problems:
            hint = f"write the metadata of the store again, import zarr; zarr.consolidate_metadata({self.name!r})"
            raise ConversionError(self.name, first_problems(problems), hint=hint)

    def _document(self, key: str) -> Any:
        if self._files.sizes[key] > _METADATA_MAX_BYTES:
            raise NotZarrError(f"it has {self._files.sizes[key]:,} bytes, expected a small file")
        data = self._files.read(key)
        if data.startswith(LFS):
            raise NotZarrError("it is a pointer of git-LFS. Run `git lfs pull` in the clone of the repository")
        try:
            return json.loads(data)
        except (ValueError, RecursionError) as error:
            raise NotZarrError(f"it is not JSON, {error}") from error

    def _add_chunks(self, arrays: Mapping[str, ZarrArray], damaged: Collection[str]) -> Iterator[str]:
        """Add the chunks to the arrays, and yield which chunks belong to no array.

        Args:
            arrays: The arrays by path.
            damaged: The paths of arrays with damaged metadata.
        """
        orphans: dict[str, int] = {}
        for key, size in self._files.sizes.items():
            if key.rpartition("/")[2] in MARKERS:
                continue
            owner = next((parent for parent in folders_above(key) if parent in arrays), None)
            if owner is not None:
                arrays[owner].add(key, key[len(owner) + 1 :] if owner else key, size)
            elif (lost := array_of_chunk(key)) and lost not in damaged:
                orphans[lost] = orphans.get(lost, 0) + 1
        for lost, count in orphans.items():
            yield f"{lost} has {count:,} chunks and neither {ARRAY_2} nor {ARRAY_3}, expected metadata of an array"

    def _open(self, name: str, array: ZarrArray) -> Any:
        folder = self._files.folder
        place = {"driver": "file", "path": f"{folder}/{name}/"} if folder else {"driver": "memory", "path": f"{name}/"}
        spec = {
            "driver": array.driver,
            "kvstore": place,
            "metadata": {key: value for key, value in array.metadata.items() if value is not None or key in _NULLABLE},
        }
        try:
            return self._tensorstore.open(
                spec, open=True, read=True, assume_metadata=True, context=self._context
            ).result()
        except LIBRARY_ERRORS as error:
            raise fault(error, self.name, f"{name}: ") from error

    def _open_memory(self) -> Any:
        return self._tensorstore.KvStore.open({"driver": "memory"}, context=self._context).result()

    def _prepare(self, name: str, array: ZarrArray, start: int, stop: int) -> None:
        """Check the chunks of rows before TensorStore reads the chunks, and put the chunks of a zip file into memory."""
        size = array.grid[0] if array.grid else 1
        numbers = range(start // size, max(stop - 1, 0) // size + 1)
        keys = {key: self._files.sizes[key] for number in numbers for key in array.stored.get(number, ())}
        held = self._held.get(name, set())
        fresh = [key for key in keys if key not in held]
        if self._memory is not None:
            if sum(keys.values()) > _HELD_MAX_BYTES:
                problem = f"{name} has chunks of {sum(keys.values()):,} bytes for each row, too many for an archive"
                raise ConversionError(self.name, [problem], hint="unpack the archive, and give the folder")
            for key in held - keys.keys():
                self._memory.write(key, None).result()
            for key in fresh:
                data = self._files.read(key)
                self._check_blosc(array, key, data)
                self._memory.write(key, data).result()
        elif array.blosc and self._files.folder:
            for key in fresh:
                with (self._files.folder / key).open("rb") as stream:
                    self._check_blosc(array, key, stream.read(_BLOSC_HEADER))
        self._held[name] = {*keys}

    def _check_blosc(self, array: ZarrArray, key: str, data: bytes) -> None:
        """Check the header of a chunk of Blosc, which TensorStore trusts for the bytes to reserve."""
        declared, most = int.from_bytes(data[4:8], "little"), math.prod(array.chunk) * array.dtype.itemsize
        if array.blosc and declared > most:
            problem = f"the chunk {key} declares {declared:,} bytes, expected at most {most:,}"
            raise ConversionError(self.name, [problem], hint=AGAIN)

    def _read_images(self, array: ZarrArray, start: int, stop: int) -> NDArray[Any]:
        """Return the rows [start, stop) of an array of which each chunk is an image."""
        size = array.grid[0]
        numbers = range(start // size, -(-stop // size))
        values = np.empty((len(numbers), *array.grid), array.dtype)
        keys = [key for number in numbers for key in array.stored.get(number, [""])]
        if array.codec == "imagecodecs_jpegxl":
            require_imagecodecs()
        images = [self._files.read(key) if key else b"" for key in keys]
        problems: dict[int, str] = {}

        def decode(first: int, last: int) -> None:
            for place in range(first, last):
                if not keys[place]:
                    values[place] = array.metadata["fill_value"]
                elif problem := _decode(array.codec, images[place], values[place]):
                    problems[place] = f"{keys[place]} {problem}"

        run_on_all_cores(decode, len(keys), 1)
        if problems:
            raise ConversionError(
                self.name, first_problems([problems[place] for place in sorted(problems)]), hint=AGAIN
            )
        rows = values.reshape(-1, *array.shape[1:])
        return rows[start - numbers.start * size : stop - numbers.start * size]


_NULLABLE = ("compressor", "fill_value", "filters")


def require_tensorstore() -> Any:
    """Return the module tensorstore.

    Raises:
        MissingDependencyError: If tensorstore is not installed.
    """
    with importing("tensorstore", "zarr", "reading zarr"):
        import tensorstore
    return tensorstore


def require_imagecodecs() -> Any:
    """Return the module imagecodecs.

    Raises:
        MissingDependencyError: If imagecodecs is not installed.
    """
    with importing("imagecodecs", "jpegxl", "decoding JPEG XL"):
        import imagecodecs
    return imagecodecs


def _consolidated(document: Any, folder: str) -> dict[str, Mapping[str, Any]]:
    """Return the documents of the arrays that consolidated metadata list, of version 2 or 3, by the path of the array."""
    prefix = f"{folder}/" if folder else ""
    with suppress(AttributeError, KeyError, TypeError):
        if "metadata" in document:
            keys = {key: one for key, one in document["metadata"].items() if key.rpartition("/")[2] == ARRAY_2}
            return {f"{prefix}{key.rpartition('/')[0]}": one for key, one in keys.items()}
        members = document["consolidated_metadata"]["metadata"].items()
        return {f"{prefix}{key}": value for key, value in members if value["node_type"] == "array"}
    return {}


def _decode(codec: str, image: bytes, out: NDArray[Any]) -> str:
    """Decode an image into a chunk, [..., rows, columns(, channels)], and return the problem, or an empty text."""
    from PIL import Image

    target = out.reshape([length for length in out.shape if length > 1] or [1])
    try:
        if codec == "imagecodecs_jpegxl":
            require_imagecodecs().jpegxl_decode(image, out=target)
            return ""
        with Image.open(io.BytesIO(image), formats=[_FORMATS[codec]]) as opened:
            size = (opened.height, opened.width, len(opened.getbands()))
            if [length for length in size if length > 1] != list(target.shape):
                return f"is an image of {list(size)}, expected {list(target.shape)}"
            decoded = np.asarray(opened)
    except (*_DECODE_ERRORS, Image.DecompressionBombError) as error:
        return f"cannot be decoded: {error}"
    if decoded.dtype != out.dtype:
        return f"is an image of {decoded.dtype}, expected {out.dtype}"
    target[...] = decoded.reshape(target.shape)
    return ""


_FORMATS = {"imagecodecs_jpeg": "JPEG", "imagecodecs_jpeg2k": "JPEG2000", "imagecodecs_png": "PNG"}
_DECODE_ERRORS = (OSError, ValueError, RuntimeError, SyntaxError, EOFError, OverflowError)
